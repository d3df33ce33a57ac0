"""Settings of the data: ``data``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from vfl.config.components import SOURCES
from vfl.config.settings import OWN, SHARED, Fraction, Positive, Section, Share, ShiftSchedule, name_in
from vfl.config.tables import TableConfig, table_owners

Numbers = Literal["standardised", "quantiles", "both"]

TABLE_KINDS = ("tables", "breast_cancer")
"""Sources of tables; their defaults differ from those of images."""

BREAST_CANCER = ("clinic", "laboratory")
"""Owners of the embedded table."""
OF_TABLES = ("tables", "join", "test_share", "test_file", "group", "validation_share", "positive_class", "numbers")
"""Settings that other sources do not have."""


def _as_written(value: object) -> object:
    # YAML reads yes and no as booleans: which class they mean, the classes say.
    return str(value).lower() if type(value) in (int, float, bool) else value


class DatasetConfig(Section):
    """The source of the samples."""

    kind: Annotated[str, name_in(SOURCES)] = "digits"
    """digits to svhn, image_folder, leaf, text, objects (from ``vfl.fit``), or a source of an installed package
    (docs/data.md)."""
    root: Path | None = None
    """Folder of the data, of text the file."""
    image_size: Positive | None = None
    """Side to which images are resized; null keeps theirs (digits: 32)."""
    options: dict[str, Any] = Field(default={})
    """Settings of a source of another package."""

    def ignored(self) -> Mapping[str, str]:
        """Return the options where the source has none."""
        has_none = self.kind in SOURCES.built_in and self.kind != "objects"
        return {"options": f"data.dataset.kind is {self.kind}"} if has_none else {}


class PartitionConfig(Section):
    """Grid that cuts images into blocks, one party each, in row-major order."""

    rows: Positive = 2
    """Rows of blocks."""
    columns: Positive = 2
    """Columns of blocks."""


class AugmentationConfig(Section):
    """Other views of an owner's own training images; evaluation, export and serving see the images themselves."""

    shift: ShiftSchedule = 0
    """Images only: largest shift in pixels, drawn for each row and pass; {8: 2} from round 8 on."""


class SharedData(Section):
    """The samples."""

    dataset: Annotated[DatasetConfig, OWN] = DatasetConfig()
    train_samples: Annotated[Positive | None, OWN] = None
    """Random subset of the training samples; null takes all."""
    test_samples: Annotated[Positive | None, OWN] = None
    """Subset of the test samples, the same for every seed; null takes all."""

    @property
    def evaluated(self) -> Literal["test", "validation"]:
        """Return the name of the samples that a run evaluates."""
        return "test"


class DataConfig(SharedData):
    """The samples, and which of their features each party holds."""

    partition: Annotated[PartitionConfig, SHARED] = PartitionConfig()
    augmentation: Annotated[AugmentationConfig, OWN] = AugmentationConfig()
    tables: Annotated[dict[str, TableConfig], OWN] = Field(default={})
    """Each owner's table by name. The owners are the parties, in this order."""
    join: Annotated[Literal["inner", "left"], OWN] = "inner"
    """inner: rows that all owners have; left: all rows of the label owner."""
    test_share: Annotated[Share, OWN] = 0.2
    """Tables only: share of test samples."""
    test_file: Annotated[Path | None, OWN] = None
    """Table with the keys of the test samples, instead of test_share."""
    group: Annotated[str | None, OWN] = None
    """Column of the label owner; samples of one value stay on one side of the split."""
    validation_share: Annotated[Fraction, OWN] = 0.0
    """Tables only: share of training samples to evaluate on, instead of the test."""
    positive_class: Annotated[Annotated[str, BeforeValidator(_as_written)] | None, OWN] = None
    """The class of AUC, F1 and the threshold; null: the second of two."""
    numbers: Annotated[Numbers | None, OWN] = None
    """Tables only: standardised, as positions among quantiles, or both (docs/data.md)."""
    file: Annotated[Path | None, OWN] = None
    """This process's file from ``lvfl split-data``."""
    labels_file: Annotated[Path | None, OWN] = None
    """A party's copy of the training labels, with training.labels=shared."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The owners' names, in the order in which the head concatenates their embeddings; no data are read.

        Raises ValueError for a source without owners, and for one of another package, which names them itself.
        """
        match self.dataset.kind:
            case "tables":
                return table_owners(self.tables)
            case "breast_cancer":
                return BREAST_CANCER
            case "objects" if owners := self.dataset.options.get("owners", ()):
                return tuple(owners)
            case "objects":
                raise ValueError("data.dataset.kind: objects are given in Python, by vfl.fit")
            case kind if kind not in SOURCES.built_in or kind in ("leaf", "text"):
                raise ValueError(f"data.dataset.kind: {kind} has no owners of features; use a mode of whole samples")
            case _:
                return tuple(f"party_{number}" for number in range(1, 1 + self.partition.rows * self.partition.columns))

    @property
    def evaluated(self) -> Literal["test", "validation"]:
        """Return the name of the samples that a run evaluates."""
        return "validation" if self.validation_share and self.dataset.kind in TABLE_KINDS else "test"

    def ignored(self) -> Mapping[str, str]:
        """Return why settings have no effect beside the others, by their dotted names in this section."""
        kind = self.dataset.kind
        if kind not in SOURCES.built_in:
            return {}
        given = ["train_samples", "test_samples", "partition", "dataset.root", "dataset.image_size"]
        unused = given if kind == "objects" else []
        if kind in TABLE_KINDS:
            of_files = ["tables", "join", "group", "positive_class"] if kind == "breast_cancer" else []
            unused += ["dataset.root", "dataset.image_size", *of_files]
        else:
            unused += OF_TABLES
        reasons = dict.fromkeys(unused, f"data.dataset.kind is {kind}")
        if self.test_file is not None:
            reasons.setdefault("test_share", "data.test_file names the test samples")
        of_tables = {"partition": "tables are not cut, their owners are the parties"}
        return reasons | (of_tables if kind in TABLE_KINDS else {})
