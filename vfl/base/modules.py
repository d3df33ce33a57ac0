"""Models as PyTorch has them: parts by name, copies, digests of weights, and calls without torch.compile."""

import copy
import hashlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vfl.base.errors import Argument, ConfigError

T = TypeVar("T")
DEEPCOPY: Any = vars(Tensor)["__deepcopy__"]


class _CopyActivations(TorchFunctionMode):
    """Lets deepcopy copy tensors inside a graph, which it refuses: kept activations, weights of old-style norms."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not DEEPCOPY or args[0].is_leaf:
            return func(*args, **(kwargs or {}))
        return args[1].setdefault(id(args[0]), args[0].detach().clone())


def copy_model(model: T, memo: dict[int, Any] | None = None) -> T:
    """Return a deep copy of a model, or of a tuple of objects that share one; kept activations lose their graph.

    ``memo`` maps the id of an object to what stands for it in the copy.
    """
    with _CopyActivations():
        return copy.deepcopy(model, memo)


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Return `named_modules`, typed, which torch leaves open; the model itself is ''."""
    return dict(cast(Any, model).named_modules())


def without_compilation(model: nn.Module) -> nn.Module:
    """Return the model inside of ``torch.compile``, the same parameters, or the model itself."""
    return vars(model)["_modules"].get("_orig_mod") or model


@contextmanager
def uncompiled(model: nn.Module) -> Generator[nn.Module]:
    """Let the parts of a model compute without ``torch.compile``, whose kernels show no operations."""
    before = [(vars(part), dict(vars(part))) for part in model.modules()]
    for part in model.modules():
        if without_compilation(part) is not part:
            vars(part)["forward"] = without_compilation(part).__call__
        vars(part)["_compiled_call_impl"] = None  # of `part.compile()`
    try:
        yield without_compilation(model)
    finally:
        for now, then in before:
            for name in ("forward", "_compiled_call_impl"):
                now.pop(name, None)
                now |= {name: then[name]} if name in then else {}


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names (sorted), dtypes, shapes and bytes of tensors on any device."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class OtherData(ConfigError):  # noqa: N818 - says what it found
    """Data are not those of the saved run."""


def check_same_data(owner: str, saved: str, present: str) -> None:
    """Raise OtherData if a run would continue with other data than it was saved with."""
    if saved != present:
        raise OtherData(f"--resume: {owner} are not those of the saved run; restore the data or start a new run")


@contextmanager
def blaming(what: str) -> Generator[None]:
    """Name in OtherData, in place of ``--resume``, what a command without that option was given."""
    try:
        yield
    except OtherData as error:
        raise ConfigError(error.in_words({Argument.RESUME: what})) from None


def combined_digest(digests: Mapping[str, str]) -> str:
    """Return the sha256 over the owners' digests (names sorted), for which no owner has to show its weights."""
    lines = "".join(f"{owner}:{digests[owner]}\n" for owner in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()
