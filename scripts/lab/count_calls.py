"""Count what a reader walks through: python scripts/lab/count_calls.py [files].

Calls of this package's functions, of how many functions and in how many files: for one exchange of two parties in one
process, and for one new row to its score. With ``files`` also the calls by file.

The rule: `sys.setprofile` sees every call, a generator's resumption too; counted are those whose code lies in this
package outside the laboratory, without bodies of modules and classes. Comprehensions and lambdas are calls. Everything
is imported before, by doing the same once uncounted, so that no import counts. Other threads are not seen.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # before the installed package: another checkout's script counts that checkout

BODIES = 0x02  # CO_NEWLOCALS: bodies of modules and classes lack it


@contextmanager
def counting() -> Generator[Counter[CodeType]]:
    """Count the calls of this package's functions meanwhile, by code."""
    calls: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_flags & BODIES:
            calls[frame.f_code] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        for code in [code for code in calls if not _ours(code)]:
            del calls[code]


def _ours(code: CodeType) -> bool:
    path = Path(code.co_filename).resolve()  # of what dataclasses write it is no file
    return (
        path.is_file()
        and path.is_relative_to(ROOT)
        and not path.is_relative_to(ROOT / "scripts" / "lab")
        and ".venv" not in path.parts
    )


def count_exchange() -> Counter[CodeType]:
    """Return the calls of a round's second exchange, of two owners of tables with labels at one of them."""
    from vfl.config import load_config
    from vfl.core.local import build_in_process
    from vfl.runs.runtime import start_runtime

    config = load_config(Path("quickstart_tables"), ["lightweighting.alpha=0", "lightweighting.beta=0"])
    server = build_in_process(config, start_runtime(config)).server
    server.start_round(0)
    server.exchanges.run(0)
    with counting() as calls:
        server.exchanges.run(1)
    return calls


def count_prediction() -> Counter[CodeType]:
    """Return the calls from a run's folder and a row of each of two owners to the row's score."""
    import vfl

    with tempfile.TemporaryDirectory() as folder:
        run = vfl.train("quickstart_tables", {"training.rounds": 1}, run_dir=Path(folder) / "run")
        tables: dict[str, object] = {name: str(path) for name, path in _new_row(Path(folder)).items()}
        run.predict(tables)
        with counting() as calls:
            vfl.Run(run.folder).predict(tables)
    return calls


def _new_row(folder: Path) -> dict[str, Path]:
    """Write the first row of the example's tables as new rows; return the files by owner."""
    from sklearn.datasets import load_breast_cancer  # pyright: ignore[reportMissingTypeStubs]

    found: Any = load_breast_cancer()  # pyright: ignore[reportUnknownVariableType]
    places = {"clinic": range(10), "laboratory": range(10, 30)}
    files: dict[str, Path] = {}
    for owner, columns in places.items():
        names = [str(found.feature_names[place]) for place in columns]
        cells = [str(found.data[0, place]) for place in columns]
        files[owner] = folder / f"{owner}.csv"
        files[owner].write_text(f"{','.join(['patient', *names])}\n{','.join(['0', *cells])}\n", encoding="utf-8")
    return files


def counted(calls: Counter[CodeType]) -> str:
    """Return the numbers of calls, functions and files as text."""
    return f"{calls.total():,} calls of {len(calls)} functions in {len({code.co_filename for code in calls})} files"


def main(show: Callable[[str], None] = print) -> None:
    """Count both, and show them."""
    for what, count in {
        "one exchange of two parties": count_exchange,
        "one row to its score": count_prediction,
    }.items():
        calls = count()
        show(f"{what}: {counted(calls)}")
        if len(sys.argv) > 1:
            files: Counter[str] = Counter()
            for code, times in calls.items():
                files[str(Path(code.co_filename).resolve().relative_to(ROOT))] += times
            for name, times in files.most_common():
                show(f"{times:6} {name}")


if __name__ == "__main__":
    main()
