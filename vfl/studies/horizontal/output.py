"""What a comparison leaves in its folder: plots, table, numbers."""

from collections.abc import Sequence
from pathlib import Path

from vfl.atomic import write_atomically
from vfl.config import ConfigError
from vfl.studies.horizontal.plots import draw_study
from vfl.studies.horizontal.report import study_section
from vfl.studies.horizontal.results import load_results, results_csv
from vfl.studies.horizontal.studies import STUDIES, Run


def write_results(runs: Sequence[Run], folder: Path, title: str) -> int:
    """Draw, tabulate and report the runs that are finished; return how many they are.

    Raises ConfigError where none is.
    """
    results = load_results(runs, folder / "runs")
    if not results:
        raise ConfigError(f"--out: {folder} holds no finished run yet; train without --plots-only")
    sections: list[str] = []
    for name in dict.fromkeys(result.study for result in results):
        own = [result for result in results if result.study == name]
        draw_study(STUDIES[name].title, own, folder / f"{name}.png")
        sections.append(study_section(name, own, f"{name}.png"))
    note = folder / "command.txt"
    about = f"```\n{note.read_text(encoding='utf-8').strip()}\n```\n\n" if note.exists() else ""
    write_atomically(folder / "results.csv", results_csv(results))
    write_atomically(folder / "README.md", f"# {title}\n\n{about}" + "\n".join(sections))
    return len(results)
