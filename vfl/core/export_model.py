"""One model as a torch.export program and an ONNX file, checked against PyTorch.

Shapes: B samples, any model [B, ...] -> [B, D].
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# torch.onnx is partly untyped, onnxruntime ships no stubs.

import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vfl.base.modules import copy_model, without_compilation
from vfl.config import ConfigError
from vfl.models.small_map import SmallMapConv2d

TOLERANCE = 1e-4
"""Largest difference from PyTorch's outputs, relative to the largest output if that exceeds 1."""
INPUT, OUTPUT = "input", "output"
TOOLS = ("onnx", "onnxruntime", "onnxscript")
"""Packages that write and check ONNX; the extra ``export``."""


class ExportMismatch(ValueError):  # noqa: N818 - says what is, not what went wrong
    """An exported model's outputs differ from the original's."""


@dataclass(frozen=True)
class Exported:
    """Files and checks of one exported model."""

    files: dict[str, int]
    """Sizes in bytes, by name."""
    differences: dict[str, float]
    """Largest difference from PyTorch's outputs, by file."""


def check_tools() -> None:
    """Raise ConfigError, before anything is loaded, if the packages that write and check ONNX are not installed."""
    missing = [name for name in TOOLS if find_spec(name) is None]
    if missing:
        raise ConfigError(f"export: needs {', '.join(missing)}; install with: pip install 'lvfl[export]'")


def export_model(model: nn.Module, example: Sequence[Tensor], folder: Path, name: str) -> Exported:
    """Write ``name.pt2`` and ``name.onnx`` for batches of any size, and check both on the example.

    ``example`` is a batch of at least two real inputs: a tensor [B, ...] for each argument of the model. Raises
    ExportMismatch if an exported model's outputs differ from PyTorch's by more than ``TOLERANCE``.
    """
    plain = plain_model(model).float().cpu().eval()
    inputs = tuple(tensor.float().cpu() if tensor.is_floating_point() else tensor.cpu() for tensor in example)
    with torch.inference_mode():
        expected_BD = plain(*inputs)
    batch = torch.export.Dim("batch", min=1)
    first = tuple(tensor[:2] for tensor in inputs)  # two rows: torch.export takes a size of 1 for fixed
    program = torch.export.export(plain, first, dynamic_shapes=tuple({0: batch} for _ in first), strict=False)
    program_file, onnx_file = f"{name}.pt2", f"{name}.onnx"
    torch.export.save(program, folder / program_file)
    _write_onnx(program, folder / onnx_file, len(inputs))
    loaded = torch.export.load(folder / program_file).module()
    with torch.inference_mode():
        outputs = {program_file: loaded(*inputs), onnx_file: run_onnx(folder / onnx_file, *inputs)}
    differences = {file: float((output - expected_BD).abs().max()) for file, output in outputs.items()}
    allowed = TOLERANCE * max(1.0, float(expected_BD.abs().max()))
    for file, difference in differences.items():
        if not difference <= allowed:
            raise ExportMismatch(f"{file}: differs from PyTorch by {difference:.2g}, more than {allowed:.2g}")
    return Exported({file: (folder / file).stat().st_size for file in outputs}, differences)


def plain_model(model: nn.Module) -> nn.Module:
    """Return a copy in which convolutions on small maps are ordinary ones, which every runtime supports."""
    plain = without_compilation(copy_model(model))
    for name, module in list(plain.named_modules()):
        if isinstance(module, SmallMapConv2d):
            kept = module.bias is not None
            layer = nn.Conv2d(module.in_channels, module.out_channels, kernel_size=3, padding=1, bias=kept)
            layer.load_state_dict(module.state_dict())
            plain.set_submodule(name, layer)
    return plain


def open_onnx(path: Path, threads: int = 1) -> Any:
    """Return an onnxruntime session on the CPU, which reports nothing to its maker."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read when it is imported
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def input_names(inputs: int) -> list[str]:
    """Return the names of an ONNX model's inputs."""
    return [INPUT, *(f"{INPUT}_{number}" for number in range(1, inputs))]


def run_onnx(path: Path, *inputs: Tensor) -> Tensor:
    """Return onnxruntime's outputs for a batch."""
    named = {name: tensor.numpy() for name, tensor in zip(input_names(len(inputs)), inputs, strict=True)}
    (output,) = open_onnx(path).run([OUTPUT], named)
    return torch.from_numpy(output)


def _write_onnx(program: torch.export.ExportedProgram, path: Path, inputs: int) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own use of deprecated calls
        converted = torch.onnx.export(
            program,
            input_names=input_names(inputs),
            output_names=[OUTPUT],
            dynamo=True,
            verbose=False,
            external_data=False,
        )
    assert converted is not None
    converted.save(path, external_data=False)
