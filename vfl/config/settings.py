"""Base class of the configuration's sections, types of checked numbers, and the one-line error."""

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, Self, Union, cast, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from vfl.config.registry import Registry
from vfl.config.schedules import (
    LARGEST,
    PartySchedule,
    Schedule,
    parse_party_schedule,
    parse_resolution_schedule,
    parse_schedule,
    values_of,
)


def _learning_rate(value: object) -> Schedule:
    schedule = parse_schedule(value)
    if not all(0 < rate < math.inf for rate in values_of(schedule)):
        raise ValueError("must be above 0 and finite")
    if isinstance(schedule, dict) and 0 not in schedule:
        raise ValueError("must name round 0")
    return schedule


def _pixels(value: object) -> Schedule:
    if type(value) is int and 0 <= value < 10**9:
        return value
    schedule = parse_schedule(value)
    if not all(number >= 0 and number.is_integer() for number in values_of(schedule)):
        raise ValueError("must be a whole number of pixels, or {round: pixels}")
    return schedule


def strict_int(value: object) -> object:
    """Refuse values that YAML or pydantic would turn into a whole number, such as true."""
    if isinstance(value, bool | float | str):
        raise ValueError("must be a whole number")
    return value


def _not_bool(value: object) -> object:
    if isinstance(value, bool):  # YAML's yes and on; pydantic would take it for 1.0
        raise ValueError("must be a number")
    return value


# A number beyond these bounds would overflow far from its setting's name.
Whole = Annotated[int, Field(strict=True, ge=-(10**12), le=10**12)]
Positive = Annotated[Whole, Field(ge=1)]
AtLeastTwo = Annotated[Whole, Field(ge=2)]
Number = Annotated[float, BeforeValidator(_not_bool), Field(ge=-(10.0**LARGEST), le=10.0**LARGEST)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
Share = Annotated[Number, Field(gt=0, lt=1)]
AboveZero = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Count = Annotated[Whole, Field(ge=0)]
Probability = Annotated[Number, Field(gt=0, le=1)]
AsItIs = PlainSerializer(lambda value: value, return_type=Any)  # pydantic would try each type of the union
RatioSchedule = Annotated[PartySchedule, PlainValidator(parse_party_schedule), AsItIs]
ResolutionSchedule = Annotated[
    PartySchedule, PlainValidator(partial(parse_party_schedule, parse=parse_resolution_schedule)), AsItIs
]
RateSchedule = Annotated[Schedule, PlainValidator(_learning_rate), AsItIs]
ShiftSchedule = Annotated[Schedule, PlainValidator(_pixels), AsItIs]


def name_in(registry: Registry) -> AfterValidator:
    """Return a validator, for ``Annotated[str, ...]``, that accepts the names of a registry's components."""
    return AfterValidator(registry.check)


class UsedWith:
    """A field's mark: ``Annotated[..., UsedWith("kind", "partial")]`` is ignored while ``kind`` has another value."""

    def __init__(self, setting: str, *values: object) -> None:
        self.setting, self.values = setting, values


class Section(BaseModel):
    """A frozen group of settings that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, serialize_by_alias=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values of some fields; what was computed of the former ones is forgotten."""
        copied = super().model_copy(update=update, deep=deep)
        for name in vars(copied).keys() - type(self).model_fields.keys():
            del vars(copied)[name]
        return copied

    @classmethod
    def known_keys(cls) -> list[str]:
        """Return the names of its settings."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @classmethod
    def type_of(cls, key: str) -> object:
        """Return the annotation of a setting, None for an unknown one."""
        field = cls.model_fields.get(key)
        return field.annotation if field else None

    def ignored(self) -> Mapping[str, str]:
        """Return why other settings than those marked ``UsedWith`` have no effect, by dotted name in this section."""
        return {}


class OneKind(Section):
    """One of the kinds of a setting, each with settings of its own; its kind alone is short for their defaults.

    Such a setting is ``Annotated[One | Other, KIND, AS_CHOICE]``, or that or null.
    """

    def __str__(self) -> str:
        kind, *others = (str(value) if name == "kind" else f"{name} {value}" for name, value in self)
        return f"{kind} ({', '.join(others)})" if others else kind


def _as_choice(value: object) -> object:
    """Read a kind alone; leave nulls out, which earlier versions wrote for what a kind does not have."""
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, dict):
        return {name: each for name, each in cast(dict[str, object], value).items() if each is not None}
    return value


class Component(OneKind, extra="allow"):
    """A component of a registry by its name; settings beside it are those of another package's component."""

    kind: str

    @property
    def options(self) -> dict[str, Any]:
        """Its own settings."""
        return dict(self.model_extra or {})


def component_of(registry: Registry) -> AfterValidator:
    """Return a validator, for ``Annotated[Component, AS_CHOICE, ...]``, that accepts a registry's components."""

    def check(component: Component) -> Component:
        registry.check(component.kind)
        for name in component.options if component.kind in registry.built_in else ():
            raise ValueError(f"{component.kind} has no setting {name!r}; leave it out")
        return component

    return AfterValidator(check)


KIND: Any = Field(discriminator="kind")
AS_CHOICE = BeforeValidator(_as_choice)


def section_of(kind: object) -> type[Section] | None:
    """Return the section class of an annotation, which may also allow null; None for any other type."""
    return next((each for each in _sections_in(kind) if not issubclass(each, OneKind)), None)


def is_choice(kind: object) -> bool:
    """Return whether an annotation is that of several kinds."""
    return sum(issubclass(each, OneKind) for each in _sections_in(kind)) > 1


def _sections_in(kind: object) -> list[type[Section]]:
    if get_origin(kind) in (Annotated, Union, UnionType):
        return [each for inner in get_args(kind) for each in _sections_in(inner)]
    return [kind] if isinstance(kind, type) and issubclass(kind, Section) else []


def section_of_values(kind: object) -> type[Section] | None:
    """Return the section class of a mapping's values, as in ``dict[str, TableConfig]``; else None."""
    return section_of(get_args(kind)[-1]) if get_origin(kind) is dict else None


def ignored_settings(section: Section, prefix: str = "") -> list[str]:
    """Return a line for each setting, in a section or those inside it, that a user gave and that has no effect."""
    reasons = {**dict(_unused(section, prefix)), **section.ignored()}
    lines = [f"{prefix}{name}: ignored, {reason}" for name, reason in reasons.items() if is_given(section, name)]
    for name in (*type(section).model_fields, *(section.model_extra or ())):
        inner = getattr(section, name)
        if isinstance(inner, Section) and name not in reasons:  # one line is enough for a section without effect
            lines += ignored_settings(inner, f"{prefix}{name}.")
    return lines


def _unused(section: Section, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the settings whose mark says that they have no effect, and why."""
    for name, field in type(section).model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, UsedWith) and (value := getattr(section, mark.setting)) not in mark.values:
                yield name, f"{prefix}{mark.setting} is {'null' if value is None else value}"


def is_given(section: Section, name: str) -> bool:
    """Return whether a user changed a setting, given by its dotted name in a section, from its default."""
    *parents, last = name.split(".")
    for parent in parents:
        section = getattr(section, parent)
    field = type(section).model_fields.get(last)
    if last not in section.model_fields_set or field is None:  # no field: another package checks the section
        return last in section.model_fields_set
    return getattr(section, last) != field.get_default(call_default_factory=True, validated_data={})


class Agreed(Enum):
    """A field's mark, ``Annotated[..., SHARED]``. The mark of a section holds for all of its fields."""

    SHARED = "both sides compute with it"
    REPLAYED = "parties that hold the labels replay the head's steps with it"
    OWN = "each side has its own, or learns it from messages"


SHARED, REPLAYED, OWN = Agreed.SHARED, Agreed.REPLAYED, Agreed.OWN


def marked_fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Agreed | None]]:
    """Yield the dotted names of all fields with their marks, None for a field without one.

    A marked section is yielded as one entry.
    """
    for name, field in section.model_fields.items():
        mark = next((each for each in field.metadata if isinstance(each, Agreed)), None)
        inner = section_of(field.annotation)
        if mark is None and inner is not None:
            yield from marked_fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", mark


def agreed_values(config: BaseModel, *, replayed: bool) -> dict[str, Any]:
    """Return the values that both sides must share by dotted name, with those for the head's replay if ``replayed``."""
    wanted = {SHARED, REPLAYED} if replayed else {SHARED}
    return {name: _value(config, name) for name, mark in marked_fields(type(config)) if mark in wanted}


def _value(config: BaseModel, name: str) -> Any:
    value: Any = attrgetter(name)(config)
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
