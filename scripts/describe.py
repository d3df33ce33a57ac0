"""Look at a table before it is used: lvfl describe FILE [--label COLUMN] [--out FILE.yaml].

Or at the answer of a query: lvfl describe --query "SELECT ..." --database URI --out FILE.yaml.

Shows type, missing share, different values and range of every column, warns of constant columns, keys and dates, and
writes what an owner edits and names under data.tables (default: FILE's name with .yaml; it never leaves the owner).
Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory).
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from vfl.base.errors import printable
from vfl.console import DONE, OneLineParser, ShowConsole, command, to_stderr

if TYPE_CHECKING:
    from vfl.config.tables import TableConfig

MOST_SHOWN = 1000
"""Largest number of columns shown; drawing a table of far more takes longer than reading it."""


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="CSV, also compressed, or Parquet")
    parser.add_argument("--query", metavar="SQL", help="in place of FILE; goes with --database and --out")
    parser.add_argument(
        "--database", metavar="URI", help="sqlite:FILE, or postgresql://USER@HOST/NAME without a password"
    )
    parser.add_argument("--label", metavar="COLUMN", help="what is to be predicted: no feature")
    parser.add_argument("--out", type=Path, metavar="FILE.yaml", help="output file; must not exist")


def check_table_file(file: Path) -> None:
    """Raise ValueError, before pyarrow is imported, for a file that is not there or is none of a table."""
    from vfl.config.shipped import kind_of

    told = kind_of(file)
    if told and (file.suffix in (".yaml", ".yml") or not file.is_file()) and "table" not in told:
        raise ValueError(f"{file}: is no table{told}")
    if file.is_dir():
        raise ValueError(f"{file}: is a folder; name one table, or write its parts as one file")
    if not file.exists():
        raise ValueError(f"{file}: cannot be read (no such file; the working folder is {Path.cwd()})")


@command(__doc__, add_arguments, warn=to_stderr)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Read, show, write."""
    asked = query_of(arguments)
    if asked is None:
        check_table_file(arguments.file)
    from vfl.data.tables.proposal import describe_as_found, doubtful_header, proposed_yaml
    from vfl.runs.atomic import check_output, is_special, write_output

    out = arguments.out or arguments.file.with_suffix(".yaml")
    if out.is_file() and not is_special(out):
        raise ValueError(f"--out: {out} exists already; delete it, or name another file")
    check_output(out)
    label: tuple[str, ...] = () if arguments.label is None else (arguments.label,)
    file = arguments.file if asked is None else rows_of(asked)
    with console.status(f"reading {arguments.file or 'the answer'}") as status:
        progress = lambda rows: status.update(f"{rows:,} rows read")  # noqa: E731 - of two readings
        summaries, found = describe_as_found(file, label, progress)
    if line := doubtful_header(file, summaries, label):
        warnings.warn(line, stacklevel=1)
    if arguments.label not in (None, *(each.name for each in summaries)):
        raise ValueError(f"--label: {arguments.file or 'the answer'} has no column {arguments.label!r}")
    if words := next((each.two_words for each in summaries if each.name == arguments.label), []):
        other, positive = words
        what = f"positive class: {positive!r}, which AUC and F1 are of; if {other!r} is meant, edit positive_class"
        console.print(printable(f"{what} in {out}"))
    table = Table("column", "proposed", "missing", "values", "range", "note", box=SIMPLE_HEAD, pad_edge=False)
    for each in summaries[:MOST_SHOWN]:
        kind, warning = each.proposal()
        kind, warning = ("label", "") if each.name == arguments.label else (kind, warning)
        cells = (each.name, kind, f"{each.missing / each.rows:.1%}", each.distinct, each.range, warning)
        table.add_row(*map(printable, cells))
    console.print(table)
    if len(summaries) > MOST_SHOWN:
        console.print(f"and {len(summaries) - MOST_SHOWN:,} columns more, in {out}")
    write_output(
        out, proposed_yaml(arguments.file if asked is None else asked, summaries, out.parent, arguments.label, found)
    )
    if found.why:
        console.print(printable(found.why))
    use = f"edit {out}, and use it as --table OWNER={out}, or name it under data.tables"
    console.print(f"{summaries[0].rows:,} rows; {use}")
    return DONE


def query_of(arguments: argparse.Namespace) -> "TableConfig | None":
    """Return the table of a query, if one is named. Raises ValueError for options that do not go together."""
    if (arguments.query is None) != (arguments.database is None):
        raise ValueError("--query: goes with --database, and --database with --query; name both or none")
    if (arguments.query is None) == (arguments.file is None):
        raise ValueError("FILE: name a table, or in its place --query with --database")
    if arguments.query is None:
        return None
    if arguments.out is None:
        raise ValueError("--out: is missing; with --query name the YAML file to write")
    from vfl.config.tables import TableConfig, database_of

    return TableConfig(query=arguments.query, database=database_of(arguments.database, "--database"))


def rows_of(asked: "TableConfig") -> Path:
    """Return the file of a query's answer. Raises TableError, one line."""
    from vfl.data.tables.opened import rows_of_query

    return rows_of_query("", asked)


if __name__ == "__main__":
    sys.exit(main())
