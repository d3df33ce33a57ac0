"""Settings of horizontal federated learning that all algorithms share, and how an algorithm's own join them.

An algorithm's section (``horizontal.NAME``) is declared beside the algorithm and read only where it is named.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field, create_model, model_validator

from vfl.config.components import ALGORITHMS
from vfl.config.devices import LinkConfig
from vfl.config.optimizer import OptimizerConfig
from vfl.config.settings import AboveZero, Fraction, NotNegative, Number, Positive, Probability, Section, name_in
from vfl.config.wireless import WirelessConfig


class SamplePartitionConfig(Section):
    """How the samples are split over the clients."""

    kind: Literal["iid", "classes", "shards", "dirichlet", "gaussian", "natural"] = "iid"
    """iid: shuffled, equal; classes: P classes per client; shards: sorted by label and cut; dirichlet: class shares by
    Dirichlet; gaussian: sizes in fifths (T-SFL, Case 3); natural: the data's own users or roles."""
    classes_per_client: Positive | None = None
    """P of ``classes``; null is 2."""
    shards_per_client: Positive | None = None
    """Of ``shards``; null is 2."""
    dirichlet_alpha: AboveZero | None = None
    """Of ``dirichlet``; null is 0.5."""
    min_samples: Positive | None = None
    """Smallest client that ``dirichlet`` may draw, null is 1; owners of ``natural`` with fewer are left out, null
    leaves out none."""
    samples_per_client: Positive | None = None
    """Of ``iid`` and ``classes``, null deals all samples; the mean of ``gaussian``, null is 1024."""

    def ignored(self) -> Mapping[str, str]:
        """Return the settings of other kinds of partition."""
        used = {
            "iid": ("samples_per_client",),
            "classes": ("classes_per_client", "samples_per_client"),
            "shards": ("shards_per_client",),
            "dirichlet": ("dirichlet_alpha", "min_samples"),
            "gaussian": ("samples_per_client",),
            "natural": ("min_samples",),
        }[self.kind]
        others = (name for name in type(self).model_fields if name not in ("kind", *used))
        return dict.fromkeys(others, f"horizontal.partition.kind is {self.kind}")


class SpeedConfig(Section):
    """SGD steps per simulated second of the devices."""

    kind: Literal["fixed", "groups", "case1", "case2", "case3", "uniform", "exponential", "gaussian"] = "fixed"
    """groups: as ``groups`` says; case1: half 1, half 4; case2: quarters 1 to 4; case3: quarters of whole normals
    around 2 to 5, redrawn every round (T-SFL); uniform: mean - std to mean + std; exponential: of this mean, rounded
    up; gaussian: rounded down, at least 1."""
    mean: AboveZero = 1.0
    std: NotNegative = 0.0
    """Standard deviation of ``gaussian``, half the width of ``uniform``."""
    groups: tuple[AboveZero, ...] = (1.0,)
    """Speeds of ``groups``, of as many equal groups of consecutive clients."""
    redrawn: bool = False
    """Draw new speeds every round (case3 always does)."""

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.kind == "uniform" and self.std >= self.mean:
            raise ValueError(f"std must be below mean = {self.mean:g} for uniform speeds (got {self.std:g})")
        if self.kind == "exponential" and self.mean < 1:
            raise ValueError(f"mean must be at least 1 step per second for exponential speeds (got {self.mean:g})")
        if not self.groups:
            raise ValueError("groups must name at least one speed")
        return self

    def ignored(self) -> Mapping[str, str]:
        """Return the settings of other kinds of speed."""
        used = {
            "fixed": ("mean",),
            "groups": ("groups",),
            "uniform": ("mean", "std", "redrawn"),
            "exponential": ("mean", "redrawn"),
            "gaussian": ("mean", "std", "redrawn"),
        }.get(self.kind, ())
        others = (name for name in ("mean", "std", "groups", "redrawn") if name not in used)
        return dict.fromkeys(others, f"horizontal.devices.speed.kind is {self.kind}")


class DevicesConfig(LinkConfig):
    """What the simulated devices are like."""

    speed: SpeedConfig = SpeedConfig()
    availability: Probability = 1.0
    """Chance that a client can be chosen in a round."""
    dropout: Fraction = 0.0
    """Chance that a chosen client's result never arrives."""


class WorkConfig(Section):
    """How much each chosen client computes."""

    kind: Literal["fixed", "interval", "partial"] = "fixed"
    """fixed: what local_epochs or local_steps say; interval: as many steps as fit ``interval_s``; partial: a share of
    the clients may end early."""
    interval_s: AboveZero = 1.0
    incomplete_share: Annotated[Number, Field(ge=0, le=1)] = 0.5
    """rho: chance that a client of ``partial`` work is one that may end early."""
    max_missing_epochs: Positive | None = None
    """Such a client leaves out 0 to so many of its epochs, all numbers equally likely: tau_max - 1, as tau_i is
    E - E_i + 1. null is local_epochs - 2 (the paper's tau_max = E - 1), at least 1."""

    def missing_epochs(self, local_epochs: int) -> int:
        """Return the most epochs that a client of partial work leaves out."""
        return max(1, local_epochs - 2) if self.max_missing_epochs is None else self.max_missing_epochs

    def ignored(self) -> Mapping[str, str]:
        """Return the settings of other kinds of work."""
        owners = {"interval_s": "interval", "incomplete_share": "partial", "max_missing_epochs": "partial"}
        return {name: f"horizontal.work.kind is {self.kind}" for name, kind in owners.items() if kind != self.kind}


class SelectionConfig(Section):
    """Which clients may be chosen."""

    min_steps: Positive = 1
    """Clients that would do fewer local steps are left out (client selection by threshold)."""
    group_weights: tuple[AboveZero, ...] = ()
    """Chances of being chosen, relative to each other, of as many equal groups of consecutive clients; [] gives all
    clients the same."""


class AlgorithmConfig(Section):
    """An algorithm's own settings: what its class calls ``Settings``. Subclasses override what differs."""

    averages_equally: ClassVar[bool] = False
    """Whether ``horizontal.weights`` is nothing to it: all count alike."""
    has_server_rate: ClassVar[bool] = True
    """Whether there is a ``horizontal.server_learning_rate``, eta_g."""

    @classmethod
    def defaults(cls) -> Mapping[str, object]:
        """Return shared settings below ``horizontal`` that this algorithm has others of where none are given."""
        return {}

    def check(self, horizontal: "HorizontalConfig", optimizer: OptimizerConfig) -> None:
        """Raise ValueError, naming the field, where the algorithm does not go with the other settings."""

    def ignored_beside(self, horizontal: "HorizontalConfig") -> Mapping[str, str]:
        """Return why a setting has no effect with this algorithm, by its dotted name below ``horizontal``."""
        name = horizontal.algorithm
        reasons = {"wireless": f"horizontal.algorithm is {name}"}
        if self.averages_equally and horizontal.weights != "equal":
            reasons["weights"] = f"{name} averages equally"
        if not self.has_server_rate:
            reasons["server_learning_rate"] = f"{name} has no eta_g"
        return reasons


class HorizontalConfig(Section, extra="allow"):
    """Clients, what they do, and how the server combines it; sections of algorithms are the extra fields."""

    algorithm: Annotated[str, name_in(ALGORITHMS)] = "fedavg"
    """One of ours (docs/horizontal.md), or what an installed package offers (docs/extending.md)."""
    clients: Positive = 10
    """N"""
    clients_per_round: Positive = 5
    """K; of an asynchronous server: clients at work at a time, and arrivals that make a round."""
    local_epochs: Positive = 1
    """E: passes over its samples of a complete client; not used where local_steps is set."""
    local_steps: Positive | None = None
    """SGD steps of a complete client instead of local_epochs."""
    server_learning_rate: AboveZero = 1.0
    """eta_g"""
    weights: Literal["reporting", "all", "equal"] = "reporting"
    """Weights of averages, unless fixed by the algorithm: n_i over the reporting clients, n_i over all (absent ones
    keep w), equal."""
    buffers: Literal["average", "local", "drop"] = "average"
    """BatchNorm's running statistics. average: as the weights, by n_i; local: every client keeps its own; drop: nobody
    does. Without averaging the evaluation normalises by the test batch."""
    engine: Literal["auto", "sequential", "batched"] = "auto"
    """How local training is computed; auto stacks clients where that is faster. Under torchrun: sequential."""
    worker_timeout_s: AboveZero = 1800.0
    """Under torchrun: seconds that a worker waits for the others' clients before it takes them for lost."""
    client_state: Literal["memory", "disk"] = "memory"
    """Where algorithms' client state and local buffers live."""
    partition: SamplePartitionConfig = SamplePartitionConfig()
    devices: DevicesConfig = DevicesConfig()
    work: WorkConfig = WorkConfig()
    selection: SelectionConfig = SelectionConfig()
    wireless: WirelessConfig = WirelessConfig()
    """The cell of an algorithm that schedules one."""

    @classmethod
    def known_keys(cls) -> list[str]:
        """Return what may stand here: the shared settings and the algorithms' sections."""
        return [*cls.model_fields, *ALGORITHMS.names()]

    @classmethod
    def type_of(cls, key: str) -> object:
        """Return the class of a section, an algorithm's included."""
        if key not in cls.model_fields and key in ALGORITHMS:
            return settings_of(key)
        return super().type_of(key)

    @model_validator(mode="before")
    @classmethod
    def _read_sections(cls, values: object) -> object:
        """Read every section of an algorithm by the class that the algorithm names."""
        if not isinstance(values, dict):
            return values
        given = cast(dict[str, Any], values)
        # Extra fields have no type: pydantic would keep them unread. What is no algorithm's, `_sections` refuses.
        others = {key: value for key, value in given.items() if key not in cls.model_fields}
        read = _sections(tuple(others)).model_validate(others)
        return given | {key: getattr(read, key) for key in others}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.clients_per_round > self.clients:
            raise ValueError(
                f"clients_per_round: {self.clients_per_round} is more than clients = {self.clients}; lower it"
            )
        groups = {"selection.group_weights": self.selection.group_weights, "devices.speed.groups": self.groups}
        for field, values in groups.items():
            if len(values) > self.clients:
                raise ValueError(f"{field}: {len(values)} groups are more than clients = {self.clients}; name fewer")
        if self.work.kind == "partial":
            self._check_partial()
        return self

    @property
    def groups(self) -> tuple[float, ...]:
        """Speeds of groups of clients, none where speeds do not come by groups."""
        return self.devices.speed.groups if self.devices.speed.kind == "groups" else ()

    def _check_partial(self) -> None:
        if self.local_steps is not None:
            raise ValueError("work.kind: partial counts epochs; leave local_steps out")
        if self.work.missing_epochs(self.local_epochs) >= self.local_epochs:
            raise ValueError(
                f"work.max_missing_epochs: partial work leaves out 1 to local_epochs - 1 = {self.local_epochs - 1} "
                "epochs; raise local_epochs or lower it"
            )

    def resolved(self, mode: str) -> Self:
        """Return the settings with the chosen algorithm's section and defaults; other algorithms' are left out.

        In vertical mode there is none. What was given stays known to ``is_given``.
        """
        values = {name: getattr(self, name) for name in type(self).model_fields}
        if mode == "horizontal":
            own = (self.model_extra or {}).get(self.algorithm) or settings_of(self.algorithm)()
            defaults = {name: value for name, value in own.defaults().items() if name not in self.model_fields_set}
            values |= defaults | {self.algorithm: own}
        # Without validation, which has been: it would read the algorithms' sections again, and count defaults as given.
        return self.model_construct(self.model_fields_set, **values)

    @property
    def own(self) -> AlgorithmConfig:
        """The chosen algorithm's section, of a horizontal experiment."""
        return (self.model_extra or {})[self.algorithm]

    def check_optimizer(self, optimizer: OptimizerConfig) -> None:
        """Raise ValueError where the clients, or their algorithm, do not go with an optimizer."""
        if optimizer.kind != "sgd":
            raise ValueError(f"training.optimizer.kind: horizontal clients take sgd only, not {optimizer.kind}")
        self.own.check(self, optimizer)

    def ignored(self) -> Mapping[str, str]:
        """Return the settings that the algorithm ignores, and the sections of others."""
        # `resolved` has left the sections of other algorithms out; the set still knows that they were given.
        others = self.model_fields_set - type(self).model_fields.keys() - {self.algorithm}
        reasons = dict.fromkeys(sorted(others), f"horizontal.algorithm is {self.algorithm}")
        if self.local_steps is not None:
            reasons["local_epochs"] = "horizontal.local_steps is given"
        return reasons | dict(self.own.ignored_beside(self))


def settings_of(name: str) -> type[AlgorithmConfig]:
    """Return the section of an algorithm. Raises ValueError for one that is unknown or has none."""
    return ALGORITHMS.load(name, _has_settings).Settings


def _has_settings(component: Any) -> bool:
    settings: Any = getattr(component, "Settings", None)
    return isinstance(component, type) and isinstance(settings, type) and issubclass(settings, AlgorithmConfig)


def _sections(names: tuple[str, ...]) -> type[Section]:
    """Return a section whose fields are the sections of some algorithms; other names it does not know."""
    fields: dict[str, Any] = {name: (settings_of(name), ...) for name in names if name in ALGORITHMS}
    return create_model("AlgorithmSections", __base__=Section, **fields)
