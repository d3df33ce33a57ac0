"""Tensors in a safetensors file that is on the disk when the call returns."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from vfl.runs.atomic import Fingerprint, write_durably

# fmt: off
_SAFETENSORS_NAMES = {
    torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.uint8: "U8", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
}
# fmt: on


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None, mode: int | None = None
) -> Fingerprint:
    """Write a safetensors file durably, copying one tensor at a time; any strides, device and sharing of memory.

    `metadata` is the format's own; `mode` is as in `write_durably`. The library's writer refuses tensors that share
    memory and reports a full disk without its errno. Raises OSError, and TypeError, naming the tensor, for a dtype or
    layout that the format lacks.
    """
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.dtype not in _SAFETENSORS_NAMES:
            raise TypeError(f"{name}: a tensor of {tensor.dtype} and {tensor.layout} cannot be written: convert it")
    return write_durably(path, _safetensors_chunks(tensors, metadata or {}), mode)


def _safetensors_chunks(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """Yield header length, JSON header, then the bytes of tensor after tensor."""
    # Large elements first: each tensor then starts at a multiple of its element size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header: dict[str, dict[str, Any]] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        dtype = _SAFETENSORS_NAMES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format's padding: data begin at a multiple of 8
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        plain = tensor.detach().resolve_neg().cpu().contiguous()
        flat = plain.as_strided((plain.numel(),), (1,))  # reshape(-1) keeps a single element's stride of 2
        yield flat.view(torch.uint8).numpy().data
