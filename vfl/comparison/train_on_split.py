"""Training on a known split with tables: all owners, or only the label owner with its own settings."""

from pathlib import Path
from typing import Any

from rich.console import Console

from vfl.config import ExperimentConfig
from vfl.core.local import InProcess, build_in_process
from vfl.data.files import LabelData, PartyData
from vfl.data.samples import Labels, Samples
from vfl.data.source import Source, Split
from vfl.data.tables.source import Tables
from vfl.runs.checkpoint import State
from vfl.runs.mode import Built, Stage
from vfl.runs.run import run_experiment


class HeldSource(Source):
    """A source with a known split."""

    tensors = 2

    def __init__(self, source: Tables, split: Split) -> None:
        super().__init__(source.data, source.seed)
        self.source, self.known, self.task = source, split, source.task

    @property
    def parties(self) -> tuple[str, ...]:
        """Names of the owners in the split."""
        return tuple(part.party for part in self.known.parties)

    def split(self) -> Split:
        """Return the known split."""
        return self.known

    def prepare(self, train: Samples) -> Any:
        """Fit the source's preparation to training samples."""
        return self.source.prepare(train)

    def names(self, party: str) -> State:
        """Return the kinds of the owner's columns by name; empty for the joined columns."""
        return self.source.names(party) if party in self.source.parties else {}

    def check(self, samples: Samples) -> None:
        """Raise ValueError for samples that the source refuses."""
        self.source.check(samples)


def train_on(
    config: ExperimentConfig,
    folder: Path,
    split: Split,
    source: Tables,
    console: Console,
) -> InProcess:
    """Train on a split in ``folder``. Raises KeyboardInterrupt after the checkpoint if a signal ends it."""
    built: list[InProcess] = []

    def build(config: ExperimentConfig, stage: Stage) -> Built:
        split_source = HeldSource(source, split)
        built.append(build_in_process(config, stage.runtime, stage.progress.on_step, split_source))
        return Built(built[0].server)

    console.print(f"training {folder.name}: {', '.join(part.party for part in split.parties)}")
    if not run_experiment(config, folder, resume=False, console=Console(quiet=True), build=build).finished:
        raise KeyboardInterrupt
    return built[0]


def single_party_config(config: ExperimentConfig, source: Tables, party: str) -> ExperimentConfig:
    """Return the experiment with only one party, which has the label owner's settings and no lightweighting.

    It trains from the seed, as no run has had only that party.
    """
    leader = source.leader
    feature = config.models.parties.get(leader, config.models.feature)
    dataset = config.data.dataset.model_copy(update={"kind": "tables"})  # others know their owners without a setting
    table = source.data.tables[leader]
    # The others' keys are of owners who are not there; an owner without features would be no party.
    table = table.model_copy(update={"keys": {}, "features": None if table.of_labels_only else table.features})
    data = config.data.model_copy(update={"tables": {party: table}, "dataset": dataset})
    return config.model_copy(
        update={
            "data": data,
            "training": config.training.model_copy(update={"start_from": None}),
            "models": config.models.model_copy(update={"feature": feature, "parties": {}}),
            "lightweighting": type(config.lightweighting)(),
            "simulation": type(config.simulation)(),
        }
    )


def single_party_split(part: PartyData, split: Split) -> Split:
    """Return the split with one party, restricted to samples for which it has a row."""
    labels = split.labels
    train, test = (Labels(each.ids, each.values) for each in (labels.train, labels.test))
    return Split((part,), LabelData(labels.classes, train, test))
