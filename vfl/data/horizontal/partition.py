"""Which client holds which samples, for every kind that `horizontal.partition.kind` names."""

import difflib
import warnings
from dataclasses import asdict, dataclass

from torch import Tensor

from vfl.data.horizontal.by_label import classes, dirichlet, shards
from vfl.data.horizontal.even import GAUSSIAN_SAMPLES_PER_CLIENT, gaussian, iid
from vfl.data.horizontal.natural import natural
from vfl.data.samples import Owners, Samples

USED: dict[str, tuple[str, ...]] = {
    "iid": ("samples_per_client",),
    "classes": ("classes_per_client", "samples_per_client"),
    "shards": ("shards_per_client",),
    "dirichlet": ("dirichlet_alpha", "min_samples"),
    "gaussian": ("samples_per_client",),
    "natural": ("min_samples",),
}
"""The parameters that each kind of partition uses."""

BY_LABEL = ("classes", "shards", "dirichlet")


@dataclass(frozen=True)
class Parameters:
    """Settings below `horizontal.partition`; None is each kind's default. See `USED` and the kinds' functions."""

    classes_per_client: int | None = None
    """P of `classes`; 2 by default."""
    shards_per_client: int | None = None
    """Of `shards`; 2 by default."""
    dirichlet_alpha: float | None = None
    """Concentration of `dirichlet`; 0.5 by default."""
    min_samples: int | None = None
    """`dirichlet`: every client's minimum, 1 by default; `natural`: owners with fewer are left out."""
    samples_per_client: int | None = None
    """`iid` and `classes`: every client's number, all samples by default; `gaussian`: the mean, 1024 by default."""

    def __post_init__(self) -> None:
        for name in ("classes_per_client", "shards_per_client", "min_samples", "samples_per_client"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"horizontal.partition.{name}: must be at least 1, got {value}")


@dataclass(frozen=True, eq=False)
class SamplePartition:
    """The clients' names and their rows of the training samples.

    Raises ValueError, naming the client, for one without samples.
    """

    names: tuple[str, ...]
    """Unique: owners' names, or client_1 and so on."""
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
        """Each client's number of samples."""
        return tuple(len(rows) for rows in self.rows)


def partition_samples(
    kind: str, train: Samples, owners: Owners | None, clients: int | None, seed: int, parameters: Parameters
) -> SamplePartition:
    """Divide the training samples among clients.

    kind: one of `USED`. clients: `horizontal.clients`; None, for `natural` only, makes every owner a client.
    Raises ValueError, naming the field, for what cannot be had; warns of parameters that the kind does not use.
    """
    _check(kind, train, owners, clients, parameters)
    if kind == "natural":
        assert owners is not None
        names, rows = natural(owners, clients, seed, parameters.min_samples)
        return SamplePartition(names, tuple(rows))
    assert clients is not None
    rows = _divide(kind, train, clients, seed, parameters)
    return SamplePartition(tuple(f"client_{number}" for number in range(1, clients + 1)), tuple(rows))


def _divide(kind: str, train: Samples, clients: int, seed: int, given: Parameters) -> list[Tensor]:
    labels = train.labels
    assert labels is not None
    match kind:
        case "iid":
            return iid(len(train), clients, seed, given.samples_per_client)
        case "gaussian":
            return gaussian(len(train), clients, seed, given.samples_per_client or GAUSSIAN_SAMPLES_PER_CLIENT)
        case "classes":
            return classes(labels, clients, given.classes_per_client or 2, seed, given.samples_per_client)
        case "shards":
            return shards(labels, clients, given.shards_per_client or 2, seed)
        case _:
            alpha = 0.5 if given.dirichlet_alpha is None else given.dirichlet_alpha
            return dirichlet(labels, clients, alpha, seed, given.min_samples or 1)


def _check(kind: str, train: Samples, owners: Owners | None, clients: int | None, parameters: Parameters) -> None:
    """Refuse what no kind, or not this one, can do."""
    if kind not in USED:
        near = difflib.get_close_matches(kind, USED, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"horizontal.partition.kind: there is no {kind!r}{hint}; choose one of {', '.join(USED)}")
    if clients is None and kind != "natural":
        raise ValueError(f"horizontal.clients: horizontal.partition.kind={kind} needs a number of clients")
    if clients is not None and clients < 1:
        raise ValueError(f"horizontal.clients: must be at least 1, got {clients}")
    if kind == "natural" and owners is None:
        raise ValueError(
            "horizontal.partition.kind: natural needs data with owners (data.dataset.kind leaf, or text with roles); "
            "choose another"
        )
    if kind in BY_LABEL and train.labels is not None and train.labels.dim() != 1:
        raise ValueError(
            f"horizontal.partition.kind: {kind} needs one label per sample, this text has one per character; "
            "choose natural, iid or gaussian"
        )
    for name, value in asdict(parameters).items():
        if value is not None and name not in USED[kind]:
            warnings.warn(f"horizontal.partition.{name} is ignored with horizontal.partition.kind={kind}", stacklevel=3)
