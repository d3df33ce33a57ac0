"""Partition of the training samples over the clients, for every kind that `horizontal.partition.kind` names."""

from dataclasses import dataclass

from torch import Tensor

from vfl.data.samples import Owners, Samples
from vfl.horizontal.config import SamplePartitionConfig
from vfl.horizontal.data.by_label import classes, dirichlet, shards
from vfl.horizontal.data.unlabelled import gaussian, iid, natural

BY_LABEL = ("classes", "shards", "dirichlet")


@dataclass(frozen=True, eq=False)
class SamplePartition:
    """The clients' names and their rows of the training samples.

    Raises ValueError, naming the client, if one has no samples.
    """

    names: tuple[str, ...]
    """Unique names: owners', or client_1 and so on."""
    rows: tuple[Tensor, ...]
    """int64 [n_i] each, ascending; no row is in two of them."""

    def __post_init__(self) -> None:
        assert len(self.names) == len(self.rows)
        for name, rows in zip(self.names, self.rows, strict=True):
            if len(rows) == 0:
                raise ValueError(f"horizontal.partition: client {name!r} has no samples; give it one or leave it out")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of samples of each client."""
        return tuple(len(rows) for rows in self.rows)


def partition_samples(
    settings: SamplePartitionConfig, train: Samples, owners: Owners | None, clients: int, seed: int
) -> SamplePartition:
    """Divide the training samples. Raises ValueError, naming the field, for an impossible partition."""
    if settings.kind == "natural":
        if owners is None:
            raise ValueError(
                "horizontal.partition.kind: natural needs data with owners (data.dataset.kind leaf, or text with "
                "roles); choose another"
            )
        names, rows = natural(owners, clients, seed, settings.min_samples)
        return SamplePartition(names, tuple(rows))
    rows = _divide_samples(settings, train, clients, seed)
    return SamplePartition(tuple(f"client_{number}" for number in range(1, clients + 1)), tuple(rows))


def _divide_samples(config: SamplePartitionConfig, train: Samples, clients: int, seed: int) -> list[Tensor]:
    labels = train.labels
    assert labels is not None
    if config.kind in BY_LABEL and labels.dim() != 1:
        raise ValueError(
            f"horizontal.partition.kind: {config.kind} needs one label per sample, this text has one per character; "
            "choose natural, iid or gaussian"
        )
    match config.kind:
        case "iid":
            return iid(len(train), clients, seed, config.samples_per_client)
        case "gaussian":
            return gaussian(len(train), clients, seed, config.samples_per_client)
        case "classes":
            return classes(labels, clients, config.classes_per_client or 2, seed, config.samples_per_client)
        case "shards":
            return shards(labels, clients, config.shards_per_client or 2, seed)
        case _:
            return dirichlet(labels, clients, config.dirichlet_alpha or 0.5, seed, config.min_samples or 1)
