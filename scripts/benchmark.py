"""Measure LVFL: lvfl benchmark BENCHMARK [--pairs N] [--json FILE].

BENCHMARK is vertical, tables, pruning, layers, processes, light, codec, horizontal, export or scheduling (FLARE's);
doctor CONFIG finds out which precision and memory layout is the fastest for an experiment.

Both sides of a comparison run in this process in turn, every pair gives a ratio; shown are medians, the median
ratio and its spread. Random data, the paper's setting by default. Run it on a machine that does nothing else.

Exit codes: 0 done (whether targets are met or not), 2 bad input (one line on stderr), 75 what may succeed later (disk,
memory), 130 interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from vfl.cli import DONE, OneLineParser, exit_code
from vfl.studies.benchmarks.paired import Options

PIPE_WIDTH = 170
"""Columns of the tables where there is no terminal to fit in."""


class Benchmark(NamedTuple):
    """A subcommand."""

    package: str
    """Has the module of its name, with the function ``benchmark_NAME``."""
    pairs: int
    options: tuple[str, ...]
    """Those of ``Options`` that matter to it, beside pairs and threads."""
    help: str


OF_PARTIES, OF_VFL = "parties.benchmarks", "vfl.studies.benchmarks"
SIZES = ("batch_size", "width", "embedding_size")
BENCHMARKS = {
    "vertical": Benchmark(
        OF_PARTIES, 10, SIZES,
        "an exchange of four parties against the bare PyTorch loop: throughput, codec share, memory",
    ),
    "tables": Benchmark(
        OF_PARTIES, 4, (),
        "an epoch over two owners' tables against the bare PyTorch loop; memory of reading a million rows",
    ),
    "pruning": Benchmark(
        OF_VFL, 10, SIZES, "a party's step after pruning against before: time saved per multiply-accumulate saved"
    ),
    "layers": Benchmark(
        OF_VFL, 10, SIZES[:2],
        "VGG16's convolutions and normalizations, pruned or not: bfloat16 against float32 and PyTorch's own layers",
    ),
    "processes": Benchmark(
        OF_PARTIES, 10, SIZES,
        "five processes over TLS against one; round trip of a frame; what beta and staleness save on a slow link",
    ),
    "light": Benchmark(
        OF_PARTIES, 200, (),
        "an exchange that computes little against the bare loop, in one process and in two over TLS",
    ),
    "codec": Benchmark(
        OF_VFL, 50, ("batch_size", "embedding_size"),
        "sparsify, encode and decode: microseconds, and bytes over the entropy bound",
    ),
    "export": Benchmark(
        OF_VFL, 30, ("width", "embedding_size"),
        "a pruned feature model in onnxruntime against the unpruned one: time and size per multiply-accumulate saved",
    ),
    "scheduling": Benchmark(
        OF_VFL, 20, (), "FLARE's scheduling of a round: optimal bands for 1,000 devices, selection out of 40"
    ),
    "horizontal": Benchmark(
        OF_VFL, 4, (),
        "a round of federated averaging against a loop written by hand: throughput; memory of many clients",
    ),
}  # fmt: skip
DOCTOR = "find out in a few seconds which precision and memory layout trains an experiment fastest on this machine"


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = OneLineParser(__doc__)
    names = ",".join([*BENCHMARKS, "doctor"])
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar=f"{{{names}}}")
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
    doctor = commands.add_parser("doctor", help=DOCTOR, description=DOCTOR)
    doctor.add_experiment("threads=2")
    return parser.parse_args(argv)


def advise(arguments: argparse.Namespace, console: Console) -> int:
    """Show what is fastest for an experiment, and with which settings."""
    from parties.benchmarks import doctor
    from vfl.config import ConfigError, load_config

    config = load_config(arguments.config, arguments.overrides)
    if config.mode != "vertical":
        raise ConfigError(f"mode: {config.mode} is not measured, engines choose their own form; use vertical")
    table, lines = doctor.advise(config)
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True)
    return DONE


def run(arguments: argparse.Namespace, command: str, console: Console) -> int:
    """Measure, show and save."""
    import torch

    from vfl.studies.benchmarks.report import check_output, describe_machine, show, write_json

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
    results = getattr(import_module(f"{BENCHMARKS[name].package}.{name}"), f"benchmark_{name}")(options)
    show(results, console)
    if arguments.json is not None:
        write_json(arguments.json, arguments.benchmark, command, options, results)
    return DONE


def _yes(there: bool) -> str:
    return "yes" if there else "no"


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and turn errors into one line and an exit code."""
    arguments = parse_arguments(argv)
    command = " ".join(["scripts/benchmark.py", *(sys.argv[1:] if argv is None else argv)])
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    if arguments.benchmark == "doctor":
        return exit_code(lambda: advise(arguments, console), warn=console.print)
    return exit_code(lambda: run(arguments, command, console), warn=console.print)


if __name__ == "__main__":
    sys.exit(main())
