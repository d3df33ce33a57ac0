"""The folder of the experiment: ``config.yaml``, ``about.json``, ``runs/``, and the results written from them."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import mean

import torch

from vfl.atomic import write_atomically
from vfl.config import ConfigError, ExperimentConfig, changed_keys, dump_config, load_config
from vfl.results import ACCURACY
from vfl.run_folder import Row, is_finished
from vfl.studies.lvfl.plan import Plan
from vfl.studies.lvfl.plots import draw_figures
from vfl.studies.lvfl.report import About, Session, describe_hardware, report
from vfl.studies.runs import load_results, results_csv


class Output:
    """One experiment's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"

    def start_session(
        self, plan: Plan, command: str, data_note: str | None = None, scaled_from: int | None = None
    ) -> About:
        """Write down what is about to be trained; a call that finds all of it finished adds no session.

        Raises ConfigError where the folder holds another experiment or cannot be written.
        """
        saved = self.folder / "config.yaml"
        about = About(plan.seeds, tuple(plan.curves), data_note or "", scaled_from)
        if saved.exists():
            changes = changed_keys(load_config(saved), plan.base)
            if changes:
                raise ConfigError(
                    f"--out: {self.folder} holds results of other settings: {', '.join(changes)}; name another folder"
                )
            earlier = self._read_about()
            note = earlier.data_note if data_note is None else data_note
            about = replace(about, sessions=earlier.sessions).with_note(note)
        missing = [run for run in plan.runs if not is_finished(self.runs / run.folder, run.config)]
        if missing:
            hardware = describe_hardware(plan.base)
            session = Session(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", command, hardware, torch.__version__)
            about = replace(about, sessions=(*about.sessions, session))
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / "about.json", json.dumps(about.to_json(), indent=2) + "\n")
            write_atomically(saved, dump_config(plan.base))  # after about.json: it says that the folder is in use
        except OSError as error:
            raise ConfigError(f"--out: {self.folder} cannot be written ({error.strerror})") from None
        return about

    def read(self) -> tuple[ExperimentConfig, About]:
        """Return the experiment as last trained. Raises ConfigError where there is none."""
        if not (self.folder / "config.yaml").exists():
            raise ConfigError(f"--out: {self.folder} holds no results yet; train them without --plots-only")
        return load_config(self.folder / "config.yaml"), self._read_about()

    def write_results(self, plan: Plan, about: About) -> int:
        """Draw, tabulate and report the runs that are finished; return how many they are."""
        results = load_results(plan.runs, self.runs)
        images = draw_figures(plan, results, self.folder)
        write_atomically(self.folder / "results.csv", results_csv(results, ("method", "seed"), columns()))
        write_atomically(self.folder / "README.md", report(plan, results, about, images))
        return len(results)

    def _read_about(self) -> About:
        return About.from_json(json.loads((self.folder / "about.json").read_text(encoding="utf-8")))


def columns() -> dict[str, Callable[[Row], object]]:
    """Return the columns of ``results.csv``: ratios are means over the parties, costs are sums."""
    shared = (ACCURACY, "loss/train", "loss/test", "savings/compute", "savings/communication")
    summed = ("macs_per_sample", "uplink_bytes", "downlink_bytes", "train_time_s")
    cells: dict[str, Callable[[Row], object]] = {tag: itemgetter(tag) for tag in shared}
    cells |= {name: partial(_over_parties, name=name, combine=mean) for name in ("alpha", "beta")}
    return cells | {name: partial(_over_parties, name=name, combine=sum) for name in summed}


def _over_parties(row: Row, name: str, combine: Callable[[list[float]], float]) -> float:
    return combine([value for tag, value in row.items() if tag.startswith(f"{name}/")])
