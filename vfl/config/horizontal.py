"""Settings of horizontal federated learning."""

from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from vfl.config.fields import AboveZero, Fraction, NotNegative, Number, Positive, Probability, Section
from vfl.config.flare import FlareConfig, WirelessConfig
from vfl.config.optimizer import OptimizerConfig

AlgorithmName = Literal[
    "fedsgd",
    "fedavg",
    "fedprox",
    "fednova",
    "scaffold",
    "feddyn",
    "fedlga",
    "fedasync",
    "fedasync_average",
    "dms",
    "fedmom",
    "flare",
]


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


class DevicesConfig(Section):
    """What the simulated devices are like."""

    speed: SpeedConfig = SpeedConfig()
    availability: Probability = 1.0
    """Chance that a client can be chosen in a round."""
    dropout: Fraction = 0.0
    """Chance that a chosen client's result never arrives."""
    latency_s: NotNegative = 0.0
    """Simulated seconds added to every client's round."""
    uplink_bytes_per_s: AboveZero | None = None
    """null: transfers take no simulated time."""
    downlink_bytes_per_s: AboveZero | None = None


class WorkConfig(Section):
    """How much each chosen client computes."""

    kind: Literal["fixed", "interval", "partial"] = "fixed"
    """fixed: what local_epochs or local_steps say; interval: as many steps as fit ``interval_s`` (T-SFL); partial: a
    share of the clients ends after 1 to ``max_epochs`` epochs (FedLGA)."""
    interval_s: AboveZero = 1.0
    incomplete_share: Annotated[Number, Field(ge=0, le=1)] = 0.5
    """rho: chance that a client is incomplete."""
    max_epochs: Positive | None = None
    """tau_max; null is local_epochs - 1."""


class SelectionConfig(Section):
    """Which clients may be chosen."""

    min_steps: Positive = 1
    """Clients that would do fewer local steps are left out (client selection by threshold)."""
    group_weights: tuple[AboveZero, ...] = ()
    """Chances of being chosen, relative to each other, of as many equal groups of consecutive clients; [] gives all
    clients the same."""


class FedProxConfig(Section):
    """FedProx."""

    mu: NotNegative = 1.0


class FedNovaConfig(Section):
    """FedNova."""

    mu: NotNegative = 0.0
    """Proximal term of the clients."""


class ScaffoldConfig(Section):
    """SCAFFOLD."""

    option: Literal[1, 2] = 2
    """1: the control variate is the full gradient at the received weights; 2: the mean step taken."""


class FedDynConfig(Section):
    """FedDyn."""

    alpha: AboveZero = 0.01


class FedLGAConfig(Section):
    """FedLGA."""

    scale: NotNegative = 1.0
    """Multiplies the correction; 1 is the paper's."""
    scope: Literal["global", "layer"] = "global"
    """One outer product over all weights, or one per parameter tensor."""


class FedAsyncConfig(Section):
    """FedAsync (Xie et al. 2019)."""

    mixing: Annotated[Number, Field(gt=0, le=1)] = 0.6
    """alpha: weight of a fresh client."""
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    power: NotNegative = 0.5
    """p of polynomial, (s + 1)^-p."""
    hinge_slope: AboveZero = 10.0
    """q of hinge, 1 / (q (s - b) + 1) above b."""
    hinge_delay: NotNegative = 4.0
    """b of hinge."""
    mu: NotNegative = 0.005
    """Proximal term of the clients (rho of the paper)."""


class FedAsyncAverageConfig(Section):
    """The synchronous averaging form of FedAsync that T-SFL compares with."""

    gamma: Fraction = 0.5
    """Weight of the old weights."""


class DMSConfig(Section):
    """T-SFL's discriminative model selection."""

    weights: Literal["corollary1", "theorem3"] = "corollary1"
    slope: NotNegative | None = None
    """c of Corollary 1; null computes it from L, G and sigma."""
    lipschitz: AboveZero = 1.0
    """L; never estimated."""
    gradient_bound: AboveZero | None = None
    """G; null estimates it every round."""
    gradient_std: AboveZero | None = None
    """sigma; null estimates it every round."""
    theta: Annotated[Number, Field(ge=1)] | None = None
    """Limits every weight to theta / N, N = clients_per_round; null does not."""

    def limit(self, clients: int) -> float:
        """Return theta for so many clients; without a limit theta / N = 1."""
        return float(clients) if self.theta is None else self.theta

    @property
    def estimates(self) -> bool:
        """Whether G or sigma is needed and not given."""
        if self.weights == "corollary1" and self.slope is not None:
            return False
        return self.gradient_bound is None or self.gradient_std is None


class FedMomConfig(Section):
    """FedMom."""

    learning_rate: AboveZero | None = None
    """eta; null is N / K, the paper's."""
    momentum: Fraction = 0.9
    """beta"""
    reference: Path | None = None
    """Run whose final weights are w* of the diagnostic <g, w - w*>; null logs none."""


class HorizontalConfig(Section):
    """Clients, what they do, and how the server combines it."""

    algorithm: AlgorithmName = "fedavg"
    clients: Positive = 10
    """N"""
    clients_per_round: Positive = 5
    """K; of fedasync: clients at work at a time, and arrivals that make a round."""
    local_epochs: Positive = 1
    """E: passes over its samples of a complete client; not used where local_steps is set."""
    local_steps: Positive | None = None
    """SGD steps of a complete client instead of local_epochs."""
    server_learning_rate: AboveZero = 1.0
    """eta_g"""
    weights: Literal["reporting", "all", "equal"] = "reporting"
    """Of averages that leave them open: n_i over the reporting clients, n_i over all (absent ones keep w), equal."""
    buffers: Literal["average", "local", "drop"] = "average"
    """BatchNorm's running statistics. average: as the weights, by n_i; local: every client keeps its own; drop: nobody
    does. Without averaging the evaluation normalises by the test batch."""
    engine: Literal["auto", "sequential", "batched"] = "auto"
    """How local training is computed; auto stacks clients where that is faster. Under torchrun: sequential."""
    worker_timeout_s: AboveZero = 1800.0
    """Under torchrun: seconds that a worker waits for the others' clients before it takes them for lost."""
    client_state: Literal["memory", "disk"] = "memory"
    """Where SCAFFOLD's, FedDyn's and local buffers' client state lives."""
    partition: SamplePartitionConfig = SamplePartitionConfig()
    devices: DevicesConfig = DevicesConfig()
    work: WorkConfig = WorkConfig()
    selection: SelectionConfig = SelectionConfig()
    fedprox: FedProxConfig = FedProxConfig()
    fednova: FedNovaConfig = FedNovaConfig()
    scaffold: ScaffoldConfig = ScaffoldConfig()
    feddyn: FedDynConfig = FedDynConfig()
    fedlga: FedLGAConfig = FedLGAConfig()
    fedasync: FedAsyncConfig = FedAsyncConfig()
    fedasync_average: FedAsyncAverageConfig = FedAsyncAverageConfig()
    dms: DMSConfig = DMSConfig()
    fedmom: FedMomConfig = FedMomConfig()
    flare: FlareConfig = FlareConfig()
    wireless: WirelessConfig = WirelessConfig()
    """Used by flare."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.clients_per_round > self.clients:
            raise ValueError(
                f"clients_per_round: {self.clients_per_round} is more than clients = {self.clients}; lower it"
            )
        if self.work.kind == "partial":
            if self.local_steps is not None:
                raise ValueError("work.kind: partial counts epochs; leave local_steps out")
            limit = self.local_epochs - 1 if self.work.max_epochs is None else self.work.max_epochs
            if not 1 <= limit < self.local_epochs:
                raise ValueError(
                    f"work.max_epochs: partial work needs 1 to local_epochs - 1 = {self.local_epochs - 1} epochs; "
                    "raise local_epochs or lower it"
                )
        return self


def check_horizontal(horizontal: HorizontalConfig, optimizer: OptimizerConfig) -> None:
    """Raise ValueError, naming the field, where an algorithm does not go with the clients' optimizer or work."""
    if optimizer.kind != "sgd":
        raise ValueError(f"training.optimizer.kind: horizontal clients take sgd only, not {optimizer.kind}")
    plain = optimizer.momentum == 0 and optimizer.weight_decay == 0
    if horizontal.algorithm == "scaffold" and horizontal.scaffold.option == 2 and not plain:
        raise ValueError(
            "training.optimizer: SCAFFOLD's option 2 takes the step for the gradient and needs plain SGD; "
            "set momentum and weight_decay to 0, or horizontal.scaffold.option=1"
        )
    if horizontal.algorithm == "fednova" and optimizer.nesterov:
        raise ValueError("training.optimizer.nesterov: FedNova's normalisation has no form for it; set it to false")
    if horizontal.algorithm == "fedsgd" and optimizer.nesterov:
        raise ValueError("training.optimizer.nesterov: FedSGD takes one step, which it only lengthens; set it to false")
    if horizontal.algorithm == "dms" and horizontal.dms.estimates and not plain:
        raise ValueError(
            "training.optimizer: DMS takes the mean step for the mean gradient and needs plain SGD; set momentum and "
            "weight_decay to 0, or give horizontal.dms.gradient_bound and gradient_std (or slope)"
        )
    if horizontal.algorithm == "dms" and horizontal.dms.weights == "theorem3":
        _check_theorem3(horizontal, optimizer)
    if horizontal.algorithm == "fedlga" and not plain:
        raise ValueError(
            "training.optimizer: FedLGA takes the mean step for the gradient and needs plain SGD; "
            "set momentum and weight_decay to 0"
        )


def _check_theorem3(horizontal: HorizontalConfig, optimizer: OptimizerConfig) -> None:
    schedule = optimizer.learning_rate
    rate = max(schedule.values()) if isinstance(schedule, dict) else schedule
    reach = rate * horizontal.dms.lipschitz * (1 + horizontal.dms.limit(horizontal.clients_per_round))
    if reach >= 1:
        raise ValueError(
            f"horizontal.dms.weights: theorem3 needs learning_rate * lipschitz * (1 + theta) below 1 (got {reach:g}; "
            "theta is clients_per_round where none is given); lower one of them, or use corollary1"
        )


def unused_settings(horizontal: HorizontalConfig, *, channels_last: bool) -> list[str]:
    """Return one line for every setting that this algorithm ignores."""
    names: tuple[str, ...] = get_args(AlgorithmName)
    owners = {name: name for name in names if name in HorizontalConfig.model_fields} | {"wireless": "flare"}
    lines = [
        f"horizontal.{section}: ignored, horizontal.algorithm is {horizontal.algorithm}"
        for section, owner in owners.items()
        if owner != horizontal.algorithm and section in horizontal.model_fields_set
    ]
    if horizontal.algorithm == "flare":
        lines += _unused_by_flare(horizontal)
    weighted = ("fedsgd", "fedavg", "fedprox", "fednova")
    if horizontal.weights == "all" and horizontal.algorithm not in weighted:
        lines.append(f"horizontal.weights: ignored, {horizontal.algorithm} has weights of its own")
    if horizontal.algorithm == "fedsgd":
        fields = ("local_epochs", "local_steps", "work")
        lines += [
            f"horizontal.{field}: ignored, fedsgd takes one step over all samples"
            for field in fields
            if field in horizontal.model_fields_set
        ]
    if horizontal.algorithm == "dms":
        lines += _unused_of_dms(horizontal.dms)
    without_rate = ("feddyn", "fedasync", "fedasync_average", "fedmom")
    if horizontal.server_learning_rate != 1 and horizontal.algorithm in without_rate:
        lines.append(f"horizontal.server_learning_rate: ignored, {horizontal.algorithm} has no eta_g")
    if channels_last:
        lines.append("channels_last: ignored, clients' models are contiguous vectors")
    return lines


def _unused_by_flare(horizontal: HorizontalConfig) -> list[str]:
    """Return one line for every setting that scheduling in a cell makes idle, or that needs the cell."""
    policy = horizontal.wireless.policy
    if policy == "none":
        named = sorted(horizontal.wireless.model_fields_set)
        forgotten = named and "policy" not in named  # who names the policy has switched the network off on purpose
        return [f"horizontal.wireless.{named[0]}: ignored, horizontal.wireless.policy is none"] if forgotten else []
    idle = {
        "clients_per_round": policy != "pre_tuned" and "clients_per_round" in horizontal.model_fields_set,
        "selection.group_weights": bool(horizontal.selection.group_weights),
        **{
            f"devices.{name}": name in horizontal.devices.model_fields_set
            for name in ("latency_s", "uplink_bytes_per_s", "downlink_bytes_per_s")
        },
    }
    return [f"horizontal.{name}: ignored, horizontal.wireless.policy is {policy}" for name in idle if idle[name]]


def _unused_of_dms(dms: DMSConfig) -> list[str]:
    if dms.weights == "theorem3":
        return [] if dms.slope is None else ["horizontal.dms.slope: ignored, it belongs to weights: corollary1"]
    if dms.slope is None:
        return []
    unused = dms.model_fields_set & {"lipschitz", "gradient_bound", "gradient_std"}
    return [f"horizontal.dms.{field}: ignored, slope is given" for field in sorted(unused)]
