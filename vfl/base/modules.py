"""Models as PyTorch has them: their parts by name, copies, and calls without torch.compile."""

import copy
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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
