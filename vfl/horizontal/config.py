"""The typed horizontal experiment: the settings that all algorithms share, and how an algorithm's own join them.

An algorithm's section (``horizontal.NAME``) is declared beside the algorithm and read only where it is named.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field, create_model, field_validator, model_validator

from vfl.config.data import TABLE_KINDS
from vfl.config.devices import LinkConfig
from vfl.config.optimizer import OptimizerConfig
from vfl.config.settings import (
    OWN,
    AboveZero,
    Fraction,
    NotNegative,
    Number,
    Positive,
    Probability,
    Section,
    UsedWith,
    name_in,
)
from vfl.config.shared import Experiment
from vfl.horizontal.components import ALGORITHMS, CLASSIFIERS
from vfl.horizontal.wireless.config import WirelessConfig


class SamplePartitionConfig(Section):
    """Partition of the samples over the clients."""

    kind: Literal["iid", "classes", "shards", "dirichlet", "gaussian", "natural"] = "iid"
    """Which client holds what (docs/data.md)."""
    classes_per_client: Annotated[Positive | None, UsedWith("kind", "classes")] = None
    """P of ``classes``; null is 2."""
    shards_per_client: Annotated[Positive | None, UsedWith("kind", "shards")] = None
    """Shards per client of ``shards``; null is 2."""
    dirichlet_alpha: Annotated[AboveZero | None, UsedWith("kind", "dirichlet")] = None
    """Concentration of ``dirichlet``; null is 0.5."""
    min_samples: Annotated[Positive | None, UsedWith("kind", "dirichlet", "natural")] = None
    """Fewest samples of a client of ``dirichlet`` (null is 1) or ``natural``."""
    samples_per_client: Annotated[Positive | None, UsedWith("kind", "iid", "classes", "gaussian")] = None
    """Samples of a client (null deals all); mean of ``gaussian`` (null is 1024)."""


class SpeedConfig(Section):
    """SGD steps per simulated second of the devices."""

    kind: Literal["fixed", "groups", "case1", "case2", "case3", "uniform", "exponential", "gaussian"] = "fixed"
    """``case1``: half 1, half 4. ``case2``: quarters 1 to 4. ``case3``: quarters around 2 to 5, redrawn.
    ``exponential``: rounded up. ``gaussian``: rounded down, at least 1."""
    mean: Annotated[AboveZero, UsedWith("kind", "fixed", "uniform", "exponential", "gaussian")] = 1.0
    """Speed of ``fixed``; mean of ``uniform``, ``exponential`` and ``gaussian``."""
    std: Annotated[NotNegative, UsedWith("kind", "uniform", "gaussian")] = 0.0
    """Deviation of ``gaussian``, half the width of ``uniform``."""
    groups: Annotated[tuple[AboveZero, ...], UsedWith("kind", "groups")] = (1.0,)
    """Speeds of equal groups of consecutive clients."""
    redrawn: Annotated[bool, UsedWith("kind", "uniform", "exponential", "gaussian")] = False
    """Draw new speeds every round."""

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.kind == "uniform" and self.std >= self.mean:
            raise ValueError(f"std must be below mean = {self.mean:g} for uniform speeds (got {self.std:g})")
        if self.kind == "exponential" and self.mean < 1:
            raise ValueError(f"mean must be at least 1 step per second for exponential speeds (got {self.mean:g})")
        if not self.groups:
            raise ValueError("groups must name at least one speed")
        return self


class DevicesConfig(LinkConfig):
    """Simulated devices of the clients."""

    speed: SpeedConfig = SpeedConfig()
    availability: Probability = 1.0
    """Chance that a client can be chosen in a round."""
    dropout: Fraction = 0.0
    """Chance that a chosen client's result never arrives."""


class WorkConfig(Section):
    """Amount of local work of each chosen client."""

    kind: Literal["fixed", "interval", "partial"] = "fixed"
    """See docs/horizontal.md."""
    interval_s: Annotated[AboveZero, UsedWith("kind", "interval")] = 1.0
    """Simulated seconds of an interval."""
    incomplete_share: Annotated[Number, Field(ge=0, le=1), UsedWith("kind", "partial")] = 0.5
    """rho: chance that a client of ``partial`` work may end early."""
    max_missing_epochs: Annotated[Positive | None, UsedWith("kind", "partial")] = None
    """It skips 0 to this many epochs (tau_max - 1); null is local_epochs - 2, at least 1."""

    def missing_epochs(self, local_epochs: int) -> int:
        """Return the largest number of epochs that a client of partial work may skip."""
        return max(1, local_epochs - 2) if self.max_missing_epochs is None else self.max_missing_epochs


class SelectionConfig(Section):
    """Limits on which clients can be chosen."""

    min_steps: Positive = 1
    """Clients that would do fewer local steps are left out."""
    group_weights: tuple[AboveZero, ...] = ()
    """Relative chances of equal groups of consecutive clients."""


class AlgorithmConfig(Section):
    """Base class of an algorithm's own settings, its ``Settings``. Subclasses override what differs."""

    averages_equally: ClassVar[bool] = False
    """The algorithm averages equally, so ``horizontal.weights`` has no effect."""
    has_server_rate: ClassVar[bool] = True
    """The algorithm uses ``horizontal.server_learning_rate``, eta_g."""

    reads_complete_work: ClassVar[bool] = False
    """The algorithm uses the steps that were asked for, also where an interval cuts them short."""

    @classmethod
    def defaults(cls) -> Mapping[str, object]:
        """Return this algorithm's own defaults of shared settings below ``horizontal``."""
        return {}

    def check(self, horizontal: "HorizontalConfig", optimizer: OptimizerConfig) -> None:
        """Raise ValueError, naming the field, if the algorithm cannot be used with the other settings."""

    def ignored_beside(self, horizontal: "HorizontalConfig") -> Mapping[str, str]:
        """Return why settings have no effect with this algorithm, by their dotted names below ``horizontal``."""
        name = horizontal.algorithm
        reasons = {"wireless": f"horizontal.algorithm is {name}"}
        if self.averages_equally and horizontal.weights != "equal":
            reasons["weights"] = f"{name} averages equally"
        if not self.has_server_rate:
            reasons["server_learning_rate"] = f"{name} has no eta_g"
        return reasons


class HorizontalConfig(Section, extra="allow"):
    """Clients, their local work, and how the server aggregates it; algorithms' sections are extra fields."""

    algorithm: Annotated[str, name_in(ALGORITHMS)] = "fedavg"
    """See docs/horizontal.md; or of an installed package."""
    clients: Positive = 10
    """N"""
    clients_per_round: Positive = 5
    """K; asynchronous: clients at work, and arrivals of a round."""
    local_epochs: Positive = 1
    """E: local passes, unless local_steps is set."""
    local_steps: Positive | None = None
    """SGD steps per round, instead."""
    server_learning_rate: AboveZero = 1.0
    """eta_g"""
    weights: Literal["reporting", "all", "equal"] = "reporting"
    """n_i of reporting clients, n_i of all (absent ones keep w), or equal."""
    buffers: Literal["average", "local", "drop"] = "average"
    """BatchNorm's statistics: averaged by n_i, kept by each client, or dropped."""
    engine: Literal["auto", "sequential", "batched"] = "auto"
    """See docs/horizontal.md."""
    worker_timeout_s: Annotated[AboveZero, Field(le=10**9)] = 1800.0
    """torchrun only: seconds until a silent worker counts as lost."""
    client_state: Literal["memory", "disk"] = "memory"
    """Place of clients' state."""
    partition: SamplePartitionConfig = SamplePartitionConfig()
    devices: DevicesConfig = DevicesConfig()
    work: WorkConfig = WorkConfig()
    selection: SelectionConfig = SelectionConfig()
    wireless: WirelessConfig = WirelessConfig()
    """The wireless cell, for an algorithm that schedules one."""

    @classmethod
    def known_keys(cls) -> list[str]:
        """Return the keys allowed here: the shared settings and the algorithms' sections."""
        return [*cls.model_fields, *ALGORITHMS.names()]

    @classmethod
    def type_of(cls, key: str) -> object:
        """Return the class of a section, an algorithm's included."""
        if key not in cls.model_fields and key in ALGORITHMS.names():
            return settings_of(key)
        return super().type_of(key)

    @model_validator(mode="before")
    @classmethod
    def _read_sections(cls, values: object) -> object:
        """Check every algorithm's section with the class that the algorithm names."""
        if not isinstance(values, dict):
            return values
        given = cast(dict[str, Any], values)
        # Extra fields have no type: pydantic would keep them unchecked. `_sections` refuses unknown ones.
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
        """Return the speeds of the groups of clients; empty if speeds are not given by group."""
        return self.devices.speed.groups if self.devices.speed.kind == "groups" else ()

    def _check_partial(self) -> None:
        if self.local_steps is not None:
            raise ValueError("work.kind: partial counts epochs; leave local_steps out")
        if self.work.missing_epochs(self.local_epochs) >= self.local_epochs:
            raise ValueError(
                f"work.max_missing_epochs: partial work leaves out 1 to local_epochs - 1 = {self.local_epochs - 1} "
                "epochs; raise local_epochs or lower it"
            )

    def resolved(self) -> Self:
        """Return the settings with the chosen algorithm's section and defaults, without other algorithms' sections.

        Settings that a user gave stay known to ``is_given``.
        """
        own = (self.model_extra or {}).get(self.algorithm) or settings_of(self.algorithm)()
        defaults = {name: value for name, value in own.defaults().items() if name not in self.model_fields_set}
        values = {name: getattr(self, name) for name in type(self).model_fields} | defaults | {self.algorithm: own}
        # Without validation, which has been: it would read the algorithms' sections again, and count defaults as given.
        return self.model_construct(self.model_fields_set, **values)

    @property
    def own(self) -> AlgorithmConfig:
        """Return the chosen algorithm's section."""
        return (self.model_extra or {})[self.algorithm]

    def check_optimizer(self, optimizer: OptimizerConfig) -> None:
        """Raise ValueError if the clients, or their algorithm, cannot use an optimizer."""
        if optimizer.kind != "sgd":
            raise ValueError(f"training.optimizer.kind: horizontal clients take sgd only, not {optimizer.kind}")
        if optimizer.schedule.kind != "steps" or optimizer.warm_up:
            field = "schedule" if optimizer.schedule.kind != "steps" else "warm_up"
            raise ValueError(f"training.optimizer.{field}: counts exchanges; clients take {{round: learning rate}}")
        if optimizer.clip_gradient is not None:
            raise ValueError("training.optimizer.clip_gradient: horizontal clients clip none; leave it out")
        self.own.check(self, optimizer)

    def ignored(self) -> Mapping[str, str]:
        """Return the settings that the algorithm ignores, and the sections of others."""
        # `resolved` has left the sections of other algorithms out; the set still knows that they were given.
        others = self.model_fields_set - type(self).model_fields.keys() - {self.algorithm}
        reasons = dict.fromkeys(sorted(others), f"horizontal.algorithm is {self.algorithm}")
        if self.local_steps is not None:
            reasons["local_epochs"] = "horizontal.local_steps is given"
        if self.work.kind == "interval" and not self.own.reads_complete_work:
            asked = ("local_epochs", "local_steps")
            reasons |= dict.fromkeys(asked, "horizontal.work.kind is interval, which takes as many steps as fit")
        return reasons | dict(self.own.ignored_beside(self))


def settings_of(name: str) -> type[AlgorithmConfig]:
    """Return the class of an algorithm's section. Raises ValueError if the algorithm is unknown or has none."""
    return ALGORITHMS.load(name, _has_settings).Settings


def _has_settings(component: Any) -> bool:
    settings: Any = getattr(component, "Settings", None)
    return isinstance(component, type) and isinstance(settings, type) and issubclass(settings, AlgorithmConfig)


def _sections(names: tuple[str, ...]) -> type[Section]:
    """Return a section class with a field for each of the given algorithms' sections; it knows no other names."""
    fields: dict[str, Any] = {name: (settings_of(name), ...) for name in names if name in ALGORITHMS.names()}
    return create_model("AlgorithmSections", __base__=Section, **fields)


class ClassifierConfig(Section):
    """The model that all clients train."""

    kind: Annotated[str, name_in(CLASSIFIERS)] = "mlp"
    """See docs/horizontal.md; or of an installed package."""


class ClientModels(Section):
    """The model."""

    classifier: ClassifierConfig = ClassifierConfig()


class HorizontalExperiment(Experiment):
    """An experiment whose clients hold samples."""

    mode: Annotated[Literal["horizontal"], OWN] = "horizontal"  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    """horizontal: clients hold samples."""
    models: ClientModels = ClientModels()  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    horizontal: HorizontalConfig = Field(default=HorizontalConfig(), validate_default=True)

    @field_validator("horizontal")
    @classmethod
    def _with_algorithm(cls, value: HorizontalConfig) -> HorizontalConfig:
        return value.resolved()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (kind := self.data.dataset.kind) in (*TABLE_KINDS, "objects"):
            raise ValueError(f"data.dataset.kind: {kind} has no whole samples; use mode=vertical")
        self.horizontal.check_optimizer(self.training.optimizer)
        return self

    def with_whole_paths(self) -> Self:
        """Return the same, also with absolute paths in the algorithm's own section."""
        own = self.horizontal.own
        paths = {name: value.absolute() for name, value in own if isinstance(value, Path)}
        update = {self.horizontal.algorithm: own.model_copy(update=paths)} if paths else {}
        return super().with_whole_paths().model_copy(update={"horizontal": self.horizontal.model_copy(update=update)})
