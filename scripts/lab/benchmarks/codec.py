"""Cost of the wire format: time against a plain copy of the dense tensor, bytes against the entropy bound."""

import math
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor

from scripts.lab.benchmarks.paired import Options, Requirement, Result, interleave
from vfl.base.random import generator
from vfl.compression.codec import ValueType, decode, dense_frame_size, encode, frame_info
from vfl.compression.sparsify import sparsify

WARM_UP = 3
DENSITIES = (1.0, 0.8, 0.5, 0.3, 0.1, 0.05, 0.01)
VALUE_BITS: dict[ValueType, int] = {"float32": 32, "float16": 16, "bfloat16": 16}
OVER_BOUND_PERCENT = {32: 5.0, 16: 10.0}
"""Largest excess over the entropy bound, by bits per value."""


def benchmark_codec(options: Options) -> list[Result]:
    """Measure normally distributed embeddings of one and of four parties' width, at several densities."""
    results: list[Result] = []
    for width in (options.embedding_size, 4 * options.embedding_size):
        stream = generator(0, "benchmark", owner=f"codec {width}")
        embedding_BD = torch.randn(options.batch_size, width, generator=stream)
        for values in VALUE_BITS:
            results += [_measure(embedding_BD, density, values, options.pairs) for density in DENSITIES]
    return results


def entropy_bound_bytes(entries: int, nonzeros: int, value_bits: int) -> float:
    """Return the mean bytes of incompressible non-zeros at random positions: at least n (H(p) + p v) / 8."""
    if nonzeros in (0, entries):
        return nonzeros * value_bits / 8
    p = nonzeros / entries
    return entries * (p * value_bits - p * math.log2(p) - (1 - p) * math.log2(1 - p)) / 8


def _measure(embedding_BD: Tensor, density: float, values: ValueType, pairs: int) -> Result:
    beta = 1 - density
    sparse_BD = sparsify(embedding_BD, beta)
    frame = encode(sparse_BD, values)
    sides = {
        "sparsify": partial(sparsify, embedding_BD, beta),
        "encode": partial(encode, sparse_BD, values),
        "decode": partial(decode, frame),
        "copy": partial(_copy, embedding_BD),
    }
    raw = interleave(sides, pairs, WARM_UP)
    info = frame_info(frame)
    bits = VALUE_BITS[values]
    dense_bytes = dense_frame_size(info.shape, values)
    bound_bytes = entropy_bound_bytes(embedding_BD.numel(), info.nonzeros, bits)
    over_bound_percent = 100 * (len(frame) / bound_bytes - 1)
    shape = " x ".join(map(str, embedding_BD.shape))
    return Result(
        group=f"codec, {shape}, {values}",
        case=f"density {density:g}, {info.format}",
        raw=raw,
        ratio_of=("encode", "copy"),
        details={
            "bytes": len(frame),
            "%_of_dense": 100 * len(frame) / dense_bytes,
            "encode_MB/s": dense_bytes / median(raw["encode"]) / 1e6,
            "decode_MB/s": dense_bytes / median(raw["decode"]) / 1e6,
        },
        requirement=Requirement(over_bound_percent, "<=", OVER_BOUND_PERCENT[bits], "% over the bound")
        if density < 1
        else Requirement(len(frame), "<=", dense_bytes, " B"),
    )


def _copy(tensor: Tensor) -> object:
    """Copy to bytes and back: the least cost of serializing a dense float32 tensor."""
    return np.frombuffer(tensor.numpy().tobytes(), np.float32).copy()
