"""The typed experiment: what a run is, read from YAML plus ``key=value`` overrides.

This is the only file that knows YAML. Every model is frozen and refuses unknown keys; a user's mistake becomes
one line of ``ConfigError`` that names the field and the fix.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeGuard, cast

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)

from vfl.lightweighting.schedule import (
    PartySchedule,
    Schedule,
    falls,
    named_parties,
    parse_party_schedule,
    parse_schedule,
    schedule_of,
)


class ConfigError(ValueError):
    """A configuration that cannot be run; the text is one line that names the field and the fix."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.splitlines()))  # keys and values of a user's may hold line ends


def _learning_rate(value: object) -> Schedule:
    schedule = parse_schedule(value)
    values = list(schedule.values()) if isinstance(schedule, dict) else [schedule]
    if not all(0 < rate < math.inf for rate in values):
        raise ValueError("must be above 0 and finite")
    if isinstance(schedule, dict) and 0 not in schedule:
        raise ValueError("must name round 0")
    return schedule


def _strict_int(value: object) -> object:
    if isinstance(value, bool | float | str):
        raise ValueError("must be a whole number")
    return value


def _not_bool(value: object) -> object:
    if isinstance(value, bool):  # YAML's yes and on; pydantic would take it for 1.0
        raise ValueError("must be a number")
    return value


Positive = Annotated[int, BeforeValidator(_strict_int), Field(ge=1)]
Number = Annotated[float, BeforeValidator(_not_bool)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
AsItIs = PlainSerializer(lambda value: value, return_type=Any)  # pydantic would try each type of the union
RatioSchedule = Annotated[PartySchedule, PlainValidator(parse_party_schedule), AsItIs]
RateSchedule = Annotated[Schedule, PlainValidator(_learning_rate), AsItIs]


class Section(BaseModel):
    """A frozen group of settings that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DatasetConfig(Section):
    """Where the samples come from."""

    kind: Literal["digits", "cifar10", "image_folder"] = "digits"
    """digits: scikit-learn's embedded 8x8 digits; cifar10: through torchvision; image_folder: ROOT/train/CLASS/*,
    ROOT/test/CLASS/*."""
    root: Path | None = None
    """Folder of the data; not used by digits."""
    image_size: Positive | None = None
    """Side in pixels to which images are resized; null keeps what is there (digits: 32)."""


class PartitionConfig(Section):
    """How the features of a sample are split: a grid of image blocks, one party each, in row-major order."""

    rows: Positive = 2
    columns: Positive = 2

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names, in the order in which the head concatenates their embeddings."""
        return tuple(f"party_{number}" for number in range(1, self.rows * self.columns + 1))


class DataConfig(Section):
    """The samples, and which of their features each party holds."""

    dataset: DatasetConfig = DatasetConfig()
    train_samples: Positive | None = None
    """Seeded random subset of the training split; null takes all."""
    test_samples: Positive | None = None
    """Subset of the test split, the same for every seed; null takes all."""
    partition: PartitionConfig = PartitionConfig()


class FeatureModelConfig(Section):
    """A party's feature model."""

    kind: Literal["vgg16", "vgg11", "cnn", "mlp"] = "vgg16"
    embedding_size: Positive = 128
    """Width d_k of the embedding; never pruned."""
    width: Annotated[Number, Field(gt=0)] = 1.0
    """Multiplier of the layers' widths."""
    batch_norm: bool = True


class HeadConfig(Section):
    """The head model: a multilayer perceptron over the concatenated embeddings."""

    hidden: tuple[Positive, ...] = (256, 128)
    """Widths of the hidden layers; two of them make the paper's 3-layer head, [] a linear classifier."""


class ModelsConfig(Section):
    """The split model."""

    feature: FeatureModelConfig = FeatureModelConfig()
    """Feature model of every party that ``parties`` does not name."""
    parties: dict[str, FeatureModelConfig] = {}
    """Feature models of single parties."""
    head: HeadConfig = HeadConfig()


class OptimizerConfig(Section):
    """SGD, the same settings at the server and at the parties."""

    learning_rate: RateSchedule = 0.05
    """A number, or {round: value} from round 0 on."""
    momentum: Fraction = 0.9
    weight_decay: Annotated[Number, Field(ge=0)] = 0.0
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        return self


class TrainingConfig(Section):
    """The LVFL algorithm (Algorithm 1)."""

    rounds: Positive = 10
    steps_per_round: Positive | None = None
    """Exchanges per round; null is one pass over the training set (full batches only)."""
    batch_size: Positive = 256
    local_iterations: Positive = 1
    """E: SGD steps per exchange, with the others' embeddings stale."""
    labels: Literal["shared", "server"] = "shared"
    """shared: every party holds the labels, as in the paper; server: parties receive gradients of their embeddings."""
    head_sync: Literal["replay", "broadcast"] = "replay"
    """labels shared only. replay: the head travels once per round and parties replay the server's steps;
    broadcast: it travels at every exchange."""
    optimizer: OptimizerConfig = OptimizerConfig()
    patience: Positive | None = None
    """Stop after this many evaluations without a better test accuracy; null never stops early."""


class PruningConfig(Section):
    """How filters are chosen."""

    importance: Literal["filter", "group"] = "filter"
    """filter: L1 norm of the filter's own weights (Li et al. 2016); group: of all weights that go with it."""
    round_to: Positive | None = None
    """Kept widths become multiples of this, but no layer wider than it was (8 or 16 suit the CPU's vectors); null keeps
    exact widths."""


class LightweightingConfig(Section):
    """What each party is spared: a number, {round: value}, or {party: either}."""

    alpha: RatioSchedule = 0.0
    """Removed share of the filters of every prunable layer, relative to the original width."""
    beta: RatioSchedule = 0.0
    """Share of the embedding's entries that is not sent."""
    error_feedback: bool = False
    """EF21: both ends keep an estimate per sample and only sparsified differences travel."""
    pruning: PruningConfig = PruningConfig()


class WireConfig(Section):
    """How tensors travel."""

    values: Literal["float32", "float16", "bfloat16"] = "float32"


class EvaluationConfig(Section):
    """The test of the joint model."""

    every: Positive = 1
    """Rounds between evaluations; the last round is always evaluated."""
    batch_size: Positive = 512
    sparsified: bool = False
    """Evaluate what would be transmitted (beta applied) instead of dense embeddings."""


class CheckpointConfig(Section):
    """Saved state."""

    every: Positive = 5
    """Rounds between checkpoints; the last round and an interrupted one are always saved."""
    keep: Annotated[int, BeforeValidator(_strict_int), Field(ge=2)] = 2
    """Checkpoints kept; two, so that a corrupt one has one before it."""


class ExperimentConfig(Section):
    """One experiment."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    """Names the run folder."""
    seed: Annotated[int, BeforeValidator(_strict_int), Field(ge=0)] = 0
    mode: Literal["vertical"] = "vertical"
    threads: Positive | None = None
    """CPU threads; null leaves PyTorch's choice. The same bits need the same number."""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:[0-9]{1,2})?)$")] = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast, float32 weights."""
    channels_last: bool = False
    data: DataConfig = DataConfig()
    models: ModelsConfig = ModelsConfig()
    training: TrainingConfig = TrainingConfig()
    lightweighting: LightweightingConfig = LightweightingConfig()
    wire: WireConfig = WireConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        parties = self.data.partition.parties
        named = {
            "lightweighting.alpha": named_parties(self.lightweighting.alpha) or {},
            "lightweighting.beta": named_parties(self.lightweighting.beta) or {},
            "models.parties": self.models.parties,
        }
        for field, names in named.items():
            for name in names:
                if name not in parties:
                    raise ValueError(f"{field}: no party is called {name!r}{_nearest(name, parties)}")
        samples = self.data.train_samples
        if samples is not None and self.training.batch_size > samples:
            raise ValueError(
                f"training.batch_size: {self.training.batch_size} is larger than data.train_samples = {samples}; "
                "lower it or take more samples"
            )
        models = [self.models.parties.get(party, self.models.feature) for party in parties]
        if self.training.batch_size == 1 and any(model.batch_norm for model in models):
            raise ValueError("training.batch_size: BatchNorm needs at least 2; or set models.feature.batch_norm=false")
        return self

    def warnings(self) -> list[str]:
        """Return one line for every setting that is ignored or only partly followed."""
        lines: list[str] = []
        alphas = {party: falls(schedule_of(self.lightweighting.alpha, party)) for party in self.data.partition.parties}
        for fall in sorted({fall for fall in alphas.values() if fall is not None}):
            who = ", ".join(party for party in alphas if alphas[party] == fall)
            lines.append(
                f"lightweighting.alpha: falls from {fall[1]:g} to {fall[2]:g} at round {fall[0]} ({who}); "
                "nothing is un-pruned, the larger ratio stays"
            )
        late = {
            "lightweighting.alpha": [schedule_of(self.lightweighting.alpha, party) for party in alphas],
            "lightweighting.beta": [schedule_of(self.lightweighting.beta, party) for party in alphas],
            "training.optimizer.learning_rate": [self.training.optimizer.learning_rate],
        }
        for field, schedules in late.items():
            rounds = {start for each in schedules if isinstance(each, dict) for start in each}
            unused = sorted(start for start in rounds if start >= self.training.rounds)
            if unused:
                lines.append(
                    f"{field}: nothing of round {unused[0]} or later is used, training.rounds is {self.training.rounds}"
                )
        if self.training.labels == "server" and self.training.head_sync == "broadcast":
            lines.append("training.head_sync: ignored with training.labels=server, the head never leaves the server")
        if self.evaluation.sparsified and self.lightweighting.error_feedback:
            lines.append("evaluation.sparsified: without error_feedback, as test samples have no estimates")
        return lines


def load_config(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read an experiment from a YAML file and ``dotted.key=value`` overrides.

    A file may name another as ``base:`` (relative to itself) and then holds only what differs from it.
    Raises ConfigError, one line, for anything that is wrong.
    """
    values = _read_with_base(path, seen=())
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise ConfigError(f"{override!r} is not an override; write key=value, as training.rounds=20")
        _set(ExperimentConfig, values, key.split("."), _parse_value(key, text))
    return parse_config(values)


def parse_config(values: Mapping[str, Any]) -> ExperimentConfig:
    """Check a nested mapping of settings. Raises ConfigError, one line, for anything that is wrong."""
    try:
        return ExperimentConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_one_line(dict(item)) for item in error.errors())) from None


def dump_config(config: ExperimentConfig) -> str:
    """Return the resolved experiment as YAML; ``load_config`` of it gives the same experiment."""
    return yaml.safe_dump(_plain(config.model_dump()), sort_keys=False, allow_unicode=True)


def changed_keys(before: ExperimentConfig, after: ExperimentConfig) -> list[str]:
    """Return the dotted keys, with both values, in which two experiments differ."""
    old, new = _flatten(before.model_dump()), _flatten(after.model_dump())
    absent = "(absent)"
    return [
        f"{key} ({old.get(key, absent)} -> {new.get(key, absent)})"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, absent) != new.get(key, absent)
    ]


def _read_with_base(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in seen:
        raise ConfigError(f"{path}: base refers back to itself")
    values = _read_yaml(path)
    base = values.pop("base", None)
    if base is None:
        return values
    inherited = _read_with_base(path.parent / str(base), (*seen, path.resolve()))
    return _overlay(ExperimentConfig, inherited, values)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date such as 2020-99-99
        raise ConfigError(f"{path}: is not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold 'key: value' settings")
    return cast(dict[str, Any], values)


def _overlay(section: type[BaseModel], under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Lay settings over others: sections merge key by key, every other value is replaced whole."""
    merged = dict(under)
    for key, value in over.items():
        inner = _field_type(section, key)
        inherited = merged.get(key)
        if _is_section(inner) and isinstance(value, dict):
            # Where the base wrote something else in the section's place, that is what gives way.
            settings = cast(dict[str, Any], inherited) if isinstance(inherited, dict) else {}
            merged[key] = _overlay(inner, settings, cast(dict[str, Any], value))
        else:
            merged[key] = value
    return merged


def _parse_value(key: str, text: str) -> object:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{key}: {text!r} is not a YAML value ({' '.join(str(error).split())})") from None


def _set(section: object, values: dict[str, Any], keys: Sequence[str], value: object) -> None:
    *parents, last = keys
    for parent in parents:
        inner = values.get(parent)
        # A number gives way to a mapping: alpha=0.2 in the file, alpha.party_1=0.4 on the command line.
        values[parent] = dict(cast(dict[str, Any], inner)) if isinstance(inner, dict) else {}
        values, section = values[parent], _field_type(section, parent)
    if _is_section(section):
        values |= _overlay(section, values, {last: value})  # a mapping for a section changes what it names
    else:
        values[last] = value


def _field_type(section: object, key: str) -> object:
    field = section.model_fields.get(key) if _is_section(section) else None
    return field.annotation if field else None


def _is_section(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _plain(value: object) -> object:
    """Return a dumped value in YAML's own types."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast(dict[object, object], value).items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in cast(tuple[object, ...], value)]
    return str(value) if isinstance(value, Path) else value


def _flatten(values: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(values, dict):
        return {prefix: values}
    flat: dict[str, object] = {}
    for key, value in cast(dict[object, object], values).items():
        flat |= _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _one_line(error: dict[str, Any]) -> str:
    location: tuple[int | str, ...] = error["loc"]
    field = ".".join(str(part) for part in location)
    message = " ".join(str(error["msg"]).removeprefix("Value error, ").split())
    if error["type"] == "extra_forbidden":
        return f"{field}: unknown key{_nearest(str(location[-1]), _known_keys(location[:-1]))}"
    if error["type"] == "missing":
        return f"{field}: is missing"
    if not field:
        return message
    got = "" if error["type"] == "value_error" and "(" in message else f" (got {error['input']!r})"
    return f"{field}: {message[0].lower()}{message[1:]}{got}"


def _known_keys(location: Sequence[int | str]) -> list[str]:
    section: object = ExperimentConfig
    for part in location:
        # What has no field of that name is a value of ``models.parties``.
        section = _field_type(section, str(part)) or FeatureModelConfig
    return list(section.model_fields) if _is_section(section) else []


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
