"""Common parts of the scripts: one-line errors, exit codes, log lines, and a console whose reader may close."""

import argparse
import io
import json
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from vfl.base.errors import PeerLost, did_you_mean, may_pass, nearest_name, one_line

YIELDING = ("GOMP_SPINCOUNT", "2000")
"""Environment of commands: turns that a waiting thread of PyTorch spins for. PyTorch reads it when it is loaded. Its
own choice is milliseconds: if another program computes, the thread keeps a core from the very one it waits for."""
DONE = 0
BAD_INPUT = 2
LOST = 3
TRY_LATER = 75
"""Exit code for conditions that may pass, EX_TEMPFAIL of sysexits.h: a full disk, too little memory, a port in use."""
INTERRUPTED = 130

PLAIN, TEXT, JSON = "plain", "text", "json"
"""Forms of a log line: bare; with time and level; an object of JSON with both."""
LOGS = (PLAIN, JSON)
"""Forms that ``--log`` offers."""
STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
"""Values of ``--out`` that name standard output."""
LEVELS = ("warning", "error")
"""Levels that a line names before a colon; any other line is an ``info``."""
WIDEST = 1000
"""Columns of the widest table."""
_NO_SUCH_MEMORY = "size calculation overflowed"
"""Error text of PyTorch for a tensor whose size in bytes overflows."""
SPEAKER_S = 10.0
"""Seconds that a worker waits for the one that speaks to report the same error."""


class OneLineParser(argparse.ArgumentParser):
    """A parser with one-line errors that refuses an empty path, since Path("") is the present folder."""

    def __init__(self, description: str | None = None, **kwargs: Any) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
        self.register("type", Path, _path)

    def add_experiment(
        self, example: str, of: str = "YAML file of the experiment, or a shipped one, such as quickstart"
    ) -> None:
        """Add the arguments for a configuration and the settings that override it."""
        self.add_argument("config", type=Path, metavar="CONFIG", help=of)
        self.add_argument(
            "overrides", nargs="*", default=[], metavar="key=value", help=f"settings to override, such as {example}"
        )  # fmt: skip

    def add_places(self) -> None:
        """Take where a run's data lie now."""
        where = "where the run's data lie now, if they were moved, such as data.tables.bank.file=bank.csv"
        self.add_argument("places", nargs="*", default=[], metavar="key=value", help=where)

    def add_tables(self) -> None:
        """Take owners' tables in place of an experiment, with the columns of label and keys."""
        many = "an owner's table or its YAML of lvfl describe, in place of CONFIG"
        self.add_argument("--table", action="append", metavar="OWNER=FILE", help=many)
        label = "with --table: column of the first one that is to be predicted (default: as the owners' YAML says)"
        self.add_argument("--label", metavar="COLUMN", help=label)
        known = "with --table: column by which rows are known, or an owner's (default: as YAML says, or a likely one)"
        self.add_argument("--key", action="append", default=[], metavar="[OWNER=]COLUMN", help=known)

    def add_party(self) -> None:
        """Add the arguments that name the party and its folder."""
        self.add_experiment("threads=2", "YAML file of the party, with data.file and network")
        self.add_argument("--party", required=True, metavar="NAME", help="name of this party, such as party_1")
        self.add_run_dir("folder of this party (default: runs/NAME-PARTY)")
        self.add_argument("--insecure", action="store_true", help="plaintext; only where network.server is loopback")

    def add_run_dir(self, of: str = "folder of the run (default: the next free runs/NAME)") -> None:
        """Add the argument for the run's folder."""
        self.add_argument("--run-dir", type=Path, metavar="DIR", help=of)

    def add_log(self, default: str) -> None:
        """Take how lines are shown."""
        self.add_argument(
            "--log", choices=LOGS, default=default,
            help="bare lines, or objects of JSON with time (UTC) and level (default: "
            f"{'lines that begin with both' if default == TEXT else default})",
        )  # fmt: skip

    def add_where(self, processes: str) -> None:
        """Take where the parties of a run are asked; by default in this process. ``processes`` explains that option."""
        where = self.add_mutually_exclusive_group()
        where.add_argument("--processes", action="store_true", help=processes)
        where.add_argument("--listen", type=Path, metavar="CONFIG", help="ask the parties that dial this server")
        self.add_argument("--insecure", action="store_true", help="with --listen: plaintext; only on loopback")
        self.refuse("--serve", "--listen CONFIG takes its place")

    def refuse(self, option: str, instead: str) -> None:
        """Refuse an option of earlier releases in one line that says what to write."""
        self.add_argument(option, nargs="?", type=partial(_removed, option, instead), help=argparse.SUPPRESS)

    def parse(self) -> argparse.Namespace:
        """Read the command line; options may stand anywhere, unless there are subcommands."""
        known = self.parse_known_args() if self._subparsers else self.parse_known_intermixed_args()
        if unknown := known[1]:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown[0])}")
        return known[0]

    def _meant(self, option: str) -> str:
        """Return the end of the line about an unknown option: the setting or the option that may be meant."""
        from vfl.config.check_settings import setting_named

        name, equals, value = option.partition("=")
        takes_settings = any(action.dest in ("overrides", "settings") for action in self._actions)
        setting = setting_named(name.lstrip("-").replace("-", "_")) if name.startswith("-") and takes_settings else None
        if setting is None:
            shown = [action for action in self._all_actions() if action.help != argparse.SUPPRESS]
            return did_you_mean(name, [each for action in shown for each in action.option_strings])
        after = sys.argv[sys.argv.index(option) + 1 :]
        if not equals:
            value = after[0] if after and not after[0].startswith("-") else "VALUE"
        return f"; it is a setting: write {setting}={value}"

    def _all_actions(self) -> list[argparse.Action]:
        """Return the arguments, and those of subcommands."""
        found = [*self._actions]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
                parsers = cast(dict[str, OneLineParser], cast(Any, action).choices)
                found += [each for parser in parsers.values() for each in parser._all_actions()]
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"unknown {value!r}{nearest_name(str(value), [*action.choices])}")

    def error(self, message: str) -> NoReturn:
        """Leave with exit code 2."""
        self.exit(BAD_INPUT, f"error: {message}; see {self.prog} --help\n" if is_printing_process() else None)


def whole_number(least: int, text: str) -> int:
    """Return an option's whole number. Raises ArgumentTypeError for anything else, and for one below ``least``."""
    if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least}")
    return int(text)


def _removed(option: str, instead: str, _value: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"was removed in 0.2.0; {instead}")


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a path")
    return Path(text)


def add_executor_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of where many runs are trained, for ``vfl.sweeps.pool``."""
    parser.add_argument(
        "--jobs",
        type=partial(whole_number, 1),
        metavar="N",
        help="runs at once (default: 1; on Ray as many as find room)",
    )
    parser.add_argument(
        "--on", default="local", metavar="local|ray[=HOST:PORT]",
        help="processes of this machine, a Ray of its own there, or a Ray cluster whose nodes share DIR (extra ray)",
    )  # fmt: skip


class ShowConsole(Console):
    """A console for plain text (no markup, no wrapping); training continues if its reader closes."""

    def __init__(self, **options: Any) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal without a letter shows another in its place. isinstance leaves the type of the buffer open.
            sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportUnknownMemberType]
        super().__init__(soft_wrap=True, markup=False, emoji=False, highlight=False, **options)

    def told(self, line: str) -> str:
        """Return a line in the form in which this console shows it."""
        return line

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:  # a full disk behind standard output is not the run folder's
            warning = f"warning: standard output cannot be written ({error.strerror}); the work continues"
            print(self.told(warning), file=sys.stderr)
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Print nothing more: a closed ``| head`` must not end a training without its checkpoint."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class LogConsole(ShowConsole):
    """A console for the log of a process that runs for long: time and level on every line, in text or JSON."""

    def __init__(self, form: str, **options: Any) -> None:
        super().__init__(force_terminal=False if form == JSON else None, **options)
        self.form = form
        self.in_order = threading.RLock()
        """Held from a line's time to its writing: lines of several threads stand in the order of their times."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print lines, or all lines of a table; a progress bar moves the cursor by objects of its own."""
        if not all(isinstance(each, str | Table) for each in objects):
            super().print(*objects, **options)
            return
        plain = Console(file=io.StringIO(), width=WIDEST, soft_wrap=True, markup=False, emoji=False, highlight=False)
        with plain.capture() as shown:
            plain.print(*objects)
        for line in shown.get().splitlines():
            if line.strip():
                with self.in_order:
                    super().print(self.told(line.rstrip()), **options)

    def told(self, line: str) -> str:
        """Return a line with time and level; the level is the word before its first colon, if that is one."""
        level, colon, message = line.partition(": ")
        if not colon or level not in LEVELS:
            level, message = "info", line
        time_UTC = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self.form == TEXT:
            return f"{time_UTC} {level}: {message}"
        return json.dumps({"time": time_UTC, "level": level, "message": message}, ensure_ascii=False)


def numbers_table(title: str, headings: Sequence[str], caption: str | None = None) -> Table:
    """Return a table without rows yet, with names in the first column and numbers in the others."""
    table = Table(title=title, caption=caption, caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a complete table; a narrower terminal wraps its lines."""
    before = console.width
    console.width = max(before, console.measure(table, options=console.options.update(max_width=WIDEST)).maximum)
    console.print(table)
    console.width = before


def to_stderr(line: str) -> None:
    """Print a warning on stderr, apart from a command's output."""
    print(line, file=sys.stderr)


Command = Callable[[argparse.Namespace, ShowConsole], int]


def command(
    doc: str | None, add_arguments: Callable[[OneLineParser], None], warn: Callable[[str], None] | None = None
) -> Callable[[Command], Callable[[], int]]:
    """Turn a function of parsed arguments into a command's ``main``: errors become one line and an exit code.

    ``doc`` is the command's help. Of several workers only the speaking one has a console that prints; it prints
    warnings unless ``warn`` does.
    """

    def door(run: Command) -> Callable[[], int]:
        def main() -> int:
            parser = OneLineParser(doc)
            add_arguments(parser)
            arguments = parser.parse()
            form = getattr(arguments, "log", PLAIN)
            quiet = not is_printing_process()
            console = ShowConsole(quiet=quiet) if form == PLAIN else LogConsole(form, quiet=quiet)
            if str(getattr(arguments, "out", None)) in STDOUT:
                console.file = sys.stderr  # what is read there is the output, without a line

            def stamped(line: str, code: int) -> str:
                # Bad input is bare but in JSON: it ends a command at its start, and users know it by "error: ".
                return line if form == PLAIN or (form == TEXT and code == BAD_INPUT) else console.told(line)

            return exit_code(lambda: run(arguments, console), warn or console.print, stamped)

        return main

    return door


def exit_code(
    run: Callable[[], int], warn: Callable[[str], None], stamped: Callable[[str, int], str] = lambda line, _: line
) -> int:
    """Run a script's work and return its exit code: every expected error becomes one line on stderr.

    ``warn`` shows a warning, ``stamped`` formats the last line, for its exit code. SIGTERM has the effect of Ctrl-C
    unless something else handles it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(*YIELDING)

    def show_warning(message: Warning | str, *_where: object) -> None:
        warn(f"warning: {message}")

    warnings.showwarning = show_warning
    threading.excepthook = _thread_failed
    try:
        return run()
    except (ValueError, OSError, PeerLost) as error:
        code = failure_code(error)
        _say(stamped(f"error: {one_line(error)}", code))
        return code
    except KeyboardInterrupt as interrupt:
        if is_printing_process():
            print(stamped(str(interrupt) or "interrupted; what was saved stays", INTERRUPTED), file=sys.stderr)
        return INTERRUPTED
    except SystemExit as error:  # the arguments are read already, so it is another package's: never a success
        raise RuntimeError("code of another package ended this program") from error
    except Exception as error:
        if not _out_of_memory(error):
            raise
        code = failure_code(error)
        _say(stamped("error: not enough memory: lower training.batch_size, or the sizes in data and models", code))
        return code


def failure_code(error: BaseException) -> int:
    """Return the exit code of a command that ends with an error shown to the user."""
    if isinstance(error, PeerLost):
        return LOST
    never = _NO_SUCH_MEMORY in str(error)
    return TRY_LATER if may_pass(error) or (_out_of_memory(error) and not never) else BAD_INPUT


def _out_of_memory(error: BaseException) -> bool:
    """Return whether an error means too little memory in Python, PyTorch's CPU allocator or CUDA.

    PyTorch has no error class for the CPU, so texts are compared.
    """
    told = ("can't allocate memory", "not enough memory", "out of memory", _NO_SUCH_MEMORY)
    return isinstance(error, MemoryError) or any(text in str(error) for text in told)


def _say(line: str) -> None:
    """Print a line on stderr, unless the speaking worker has just printed it.

    torchrun ends all workers when one has ended. A worker still alive after SPEAKER_S must report the error itself.
    """
    if not is_printing_process():
        try:
            time.sleep(SPEAKER_S)
        except KeyboardInterrupt:
            return
    print(line, file=sys.stderr)


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    # A full disk in TensorBoard's writing thread comes up in the main thread again, as one line.
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)


def under_torchrun() -> bool:
    """Return whether torchrun has started this process."""
    return {"WORLD_SIZE", "RANK", "LOCAL_RANK"} <= os.environ.keys()


def is_printing_process() -> bool:
    """Return whether this process is the one of its machine that prints messages common to all."""
    return not under_torchrun() or os.environ["LOCAL_RANK"] == "0"
