"""A study: methods that are compared in one setting, and their trainings."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from scripts.lab.studies.runs import StudyRun
from vfl.config import ConfigError, parse_config
from vfl.config.files import lay_over, parse_overrides, read_settings, read_yaml
from vfl.config.settings import Section
from vfl.sweeps.sweep_plan import Settings


class Study(Section):
    """One setting and its methods."""

    title: str
    config: str
    """Name of a shipped experiment."""
    settings: dict[str, Any] = Field(default={})
    """Settings in which all methods differ from it, by dotted key."""
    methods: dict[str, dict[str, Any]]
    """Each one's own settings, by the name of its curve."""
    orderings: tuple[tuple[str, str], ...] = ()
    """Published orderings: the first is better than the second."""
    source: str = ""
    """Publication of the setting and the orderings."""
    matched: dict[str, str] = Field(default={})
    """Control of a method: FedAvg with a larger server rate that, if possible, makes its steps as long."""

    def run(self, name: str, method: str, seed: int, further: Settings) -> StudyRun:
        """Return a training of the study ``name``; ``further`` settings come last. Raises ConfigError."""
        own = {"seed": seed, "name": f"{name}-{method}", **self.settings, **self.methods[method], **further}
        config = parse_config(lay_over(read_settings(Path(self.config)), own))
        return StudyRun(name, method, seed, config)


@cache
def horizontal_studies() -> dict[str, Study]:
    """Return the comparisons of the horizontal algorithms, by name."""
    found = read_yaml(Path(__file__).with_name("horizontal.yaml"))
    return {name: Study.model_validate(values) for name, values in found.items()}


def make_runs(
    names: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str],
    rounds: int | None,
    methods: Sequence[str] = (),
) -> list[StudyRun]:
    """Return the runs of some horizontal studies, a seed at a time; ``overrides`` come after the studies' own.

    ``methods``, if given, are the only ones. Raises ConfigError for an unknown study, method or setting.
    """
    studies = horizontal_studies()
    if unknown := [name for name in names if name not in studies]:
        raise ConfigError(f"--studies: there is no {unknown[0]!r}; choose from {', '.join(studies)}")
    known = {method for name in names for method in studies[name].methods}
    if unknown := [method for method in methods if method not in known]:
        raise ConfigError(
            f"--methods: {unknown[0]!r} is in none of the studies; choose from {', '.join(sorted(known))}"
        )
    further = parse_overrides(overrides) | ({} if rounds is None else {"training.rounds": rounds})
    return [
        studies[name].run(name, method, seed, further)
        for seed in seeds
        for name in names
        for method in studies[name].methods
        if not methods or method in methods
    ]
