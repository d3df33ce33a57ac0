"""Feature models: built by name, and checked against their contract (docs/extending.md)."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch's own signatures are partly untyped.

import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from vfl.base.errors import one_line, with_type
from vfl.base.modules import copy_model
from vfl.base.random import seeded
from vfl.compression.pruning import StructuredPruner
from vfl.config.optimizer import OptimizerConfig
from vfl.models.features import ModelSpec
from vfl.runs.optim import build_optimizer

T = TypeVar("T")

CHECKED_RATIOS = (0.25, 0.5, 0.75)
"""Ratios alpha to which the check prunes a model, one after another."""
SAME = 1e-5
"""Largest difference of outputs that count as equal."""


def given_model(spec: ModelSpec) -> nn.Module:
    """Raise ValueError: a model of this kind must be passed as an object by a Python program."""
    raise ValueError("models.feature.kind: given is a model of a Python program; call vfl.fit with it")


def own_model(spec: ModelSpec) -> nn.Module:
    """Raise ValueError: a model of this kind is built by its owner only, whose configuration names it."""
    raise ValueError("models.feature.kind: own is a model that another owner's configuration names; name one here")


def check_embedding(model: nn.Module, inputs: Sequence[Tensor], width: int | None = None) -> Tensor:
    """Return the embeddings of some samples, in evaluation mode.

    Raises ValueError, one line, if the model cannot read them or does not return float [B, width].
    """
    was_training = model.training
    model.eval()
    with torch.no_grad():
        output = _step(model, "forward", lambda: cast(object, model(*inputs)))
    model.train(was_training)
    if not (isinstance(output, Tensor) and output.dtype == torch.float32 and output.dim() == 2):
        raise ValueError(f"{type(model).__name__}: forward gives {_described(output)} instead of float32 [B, D]")
    expected = [len(inputs[0]), output.shape[1] if width is None else width]
    if list(output.shape) != expected:
        raise ValueError(f"{type(model).__name__}: forward gives {_described(output)} instead of float32 {expected}")
    return output


def check_alone(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Raise ValueError if a sample's embedding depends on other samples of its batch, on chance or on earlier calls."""
    single_1D = check_embedding(model, [tensor[:1] for tensor in inputs])
    _same(model, "a sample alone", check_embedding(model, inputs)[:1], single_1D)


def check_trains(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Raise ValueError if training would change none, or not all, of the parameters that the embedding depends on."""
    trained = copy_model(model).train()
    with seeded(0, "check"):  # Dropout draws
        output = _step(model, "training", lambda: cast(object, trained(*inputs)))
    name, expected = type(model).__name__, check_embedding(model, inputs)
    if not (isinstance(output, Tensor) and output.shape == expected.shape and output.dtype == expected.dtype):
        raise ValueError(f"{name}: in training mode forward gives {_described(output)}, else {_described(expected)}")
    leaves = _leaves(output)
    if not leaves:
        raise ValueError(f"{name}: forward gives an embedding without a gradient: no parameter would be trained")
    if not leaves <= set(trained.parameters()):
        raise ValueError(
            f"{name}: uses parameters that are not registered; assign them to self, lists as nn.ModuleList"
        )


def _leaves(output: Tensor) -> set[Tensor]:
    """Return the tensors to which a backward pass would propagate gradients."""
    nodes, seen = [output.grad_fn], set[object]()
    leaves = set[Tensor]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [each for each, _ in node.next_functions]
        if hasattr(node, "variable"):  # AccumulateGrad, where the graph ends at a leaf
            leaves.add(cast(Any, node).variable)
    return leaves


def check_feature_model(model: nn.Module, example: Tensor | Sequence[Tensor]) -> None:
    """Check that a model keeps the contract of feature models: forward, pruning, state, export.

    ``example``: a batch of at least two samples, a tensor [B, ...] or one for each argument of the model. The model
    stays unchanged. Raises ValueError, one line, that says what fails. A model that cannot be pruned ("pruning: ...")
    can still train with alpha = 0.
    """
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    width = check_embedding(model, inputs).shape[1]
    check_alone(model, inputs)
    check_trains(model, inputs)
    pruned = _step(model, "pruning", lambda: _pruned_and_moved(model, inputs, width))
    for each in (model, pruned):
        _step(model, "export", partial(_export, each, inputs))


def _pruned_and_moved(model: nn.Module, inputs: Sequence[Tensor], width: int) -> nn.Module:
    """Train and prune a copy in turns, load its state into another copy, as a resumed party does, and return that."""
    trained, moved = copy_model(model).train(), copy_model(model)
    optimizer = build_optimizer(trained, OptimizerConfig())
    pruner = StructuredPruner(trained, inputs)
    for alpha in CHECKED_RATIOS:
        for _ in range(2):  # before: momentum for the event to carry; after: no removed parameter is still referenced
            optimizer.zero_grad()
            trained(*inputs).square().mean().backward()
            optimizer.step()
            pruner.prune_to(alpha, optimizer)
        check_embedding(trained, inputs, width)
    StructuredPruner(moved, inputs).load_state_dict(pruner.state_dict())
    moved.load_state_dict(trained.state_dict())
    _same(model, "state moved to another copy", check_embedding(trained, inputs), check_embedding(moved, inputs))
    return moved


def _export(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    from vfl.core.export_model import check_tools, export_model  # ONNX's tools are an extra

    check_tools()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own
        export_model(model, inputs, Path(folder), "model")


def _same(model: nn.Module, what: str, expected: Tensor, got: Tensor) -> None:
    difference = float((expected - got).abs().max())
    if not difference <= SAME * max(1.0, float(expected.abs().max())):
        raise ValueError(f"{type(model).__name__}: {what} gives other embeddings (largest difference {difference:.2g})")


def _step(model: nn.Module, what: str, step: Callable[[], T]) -> T:
    """Take a step of a user's model; whatever it raises becomes one line of ValueError."""
    try:
        return step()
    except Exception as error:
        reason = one_line(error) if isinstance(error, ValueError) else with_type(error)
        for other in {each.dtype for each in model.parameters()} - {torch.float32}:
            reason += f"; its parameters are {other}: give model.float()"
        raise ValueError(f"{type(model).__name__}: {what}: {reason}") from error


def _described(output: object) -> str:
    return f"{output.dtype} {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__


def mixes_rows(model: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Return whether a training row's embedding depends on the rows beside it, by BatchNorm or otherwise.

    ``inputs``: two rows, or one where there is no other.
    """
    kinds = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm
    if any(isinstance(layer, kinds) for layer in model.modules()):
        return True
    trained = copy_model(model).train()
    embeddings: list[Tensor] = []
    for other in (-1, 0):  # beside the second row, and beside itself
        with seeded(0, "check"), torch.no_grad():  # Dropout draws
            embeddings.append(trained(*(tensor[[0, other]] for tensor in inputs))[0])
    first_D, second_D = embeddings
    return not torch.allclose(first_D, second_D, atol=SAME)
