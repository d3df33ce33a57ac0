"""The benchmarks by name, and the command of ``scripts/benchmark.py``, which measures, shows and saves.

Both sides of a comparison run in one process in turn, and every pair gives a ratio; medians, the median ratio and its
spread are shown. Random data, the paper's setting by default.
"""

import argparse
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from scripts.lab.benchmarks.paired import Options
from vfl.console import DONE


class Benchmark(NamedTuple):
    """A subcommand."""

    pairs: int
    options: tuple[str, ...]
    """Names of the ``Options`` that it uses, beside pairs and threads."""
    help: str


SIZES = ("batch_size", "width", "embedding_size")
BENCHMARKS = {
    "vertical": Benchmark(
        10, SIZES,
        "an exchange of four parties against the bare PyTorch loop: throughput, codec share, memory",
    ),
    "tables": Benchmark(
        4, (),
        "an epoch over two owners' tables against the bare PyTorch loop; memory of reading a million rows",
    ),
    "pruning": Benchmark(
        10, SIZES, "a party's step after pruning against before: time saved per multiply-accumulate saved"
    ),
    "processes": Benchmark(
        10, SIZES,
        "five processes over TLS against one; round trip of a frame; what beta and staleness save on a slow link",
    ),
    "light": Benchmark(
        200, (),
        "an exchange that computes little against the bare loop, in one process and in two over TLS",
    ),
    "augmentation": Benchmark(100, (), "an exchange whose images are shifted against one whose images are not"),
    "codec": Benchmark(
        50, ("batch_size", "embedding_size"),
        "sparsify, encode and decode: microseconds, and bytes over the entropy bound",
    ),
    "export": Benchmark(
        30, ("width", "embedding_size"),
        "a pruned feature model in onnxruntime against the unpruned one: time and size per multiply-accumulate saved",
    ),
    "scheduling": Benchmark(
        20, (), "FLARE's scheduling of a round: optimal bands for 1,000 devices, selection out of 40"
    ),
    "horizontal": Benchmark(
        4, (),
        "a round of federated averaging against a loop written by hand: throughput; memory of many clients",
    ),
}  # fmt: skip


def add_commands(commands: Any) -> None:
    """Add a subcommand of argparse for each benchmark."""
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(name, help=benchmark.help, description=benchmark.help)
        command.add_argument("--pairs", type=int, default=benchmark.pairs, help="measured pairs (%(default)s)")
        command.add_argument("--threads", type=int, help="CPU threads (PyTorch's choice)")
        for option in benchmark.options:
            default = getattr(Options, option)
            command.add_argument(
                f"--{option.replace('_', '-')}", type=type(default), default=default, help="(%(default)s)"
            )
        command.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")


def run(arguments: argparse.Namespace, command: str, console: Console) -> int:
    """Measure, show and save."""
    import torch

    from scripts.lab.benchmarks.report import check_output, describe_machine, show, write_json

    check_output(arguments.json)
    given = {field.name: getattr(arguments, field.name) for field in fields(Options) if hasattr(arguments, field.name)}
    options = Options(**given)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    machine = describe_machine()
    console.print(
        f"{arguments.benchmark}: {options.pairs} pairs on {machine['cpu']}, {machine['threads']} of {machine['cores']} "
        f"cores, AVX512-BF16 {_yes(machine['avx512_bf16'])}, AMX-BF16 {_yes(machine['amx_bf16'])}, "
        f"torch {machine['torch']}",
        highlight=False,
    )
    name = arguments.benchmark
    results = getattr(import_module(f"{__package__}.{name}"), f"benchmark_{name}")(options)
    show(results, console)
    if arguments.json is not None:
        write_json(arguments.json, arguments.benchmark, command, options, results)
    return DONE


def _yes(there: bool) -> str:
    return "yes" if there else "no"
