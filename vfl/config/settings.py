"""What every section of the configuration is made of: its base class, checked numbers, the one-line error."""

import math
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from vfl.config.registry import Registry
from vfl.config.schedules import PartySchedule, Schedule, parse_party_schedule, parse_schedule, values_of


def _learning_rate(value: object) -> Schedule:
    schedule = parse_schedule(value)
    if not all(0 < rate < math.inf for rate in values_of(schedule)):
        raise ValueError("must be above 0 and finite")
    if isinstance(schedule, dict) and 0 not in schedule:
        raise ValueError("must name round 0")
    return schedule


def strict_int(value: object) -> object:
    """Refuse what YAML or pydantic would turn into a whole number."""
    if isinstance(value, bool | float | str):
        raise ValueError("must be a whole number")
    return value


def _not_bool(value: object) -> object:
    if isinstance(value, bool):  # YAML's yes and on; pydantic would take it for 1.0
        raise ValueError("must be a number")
    return value


Positive = Annotated[int, BeforeValidator(strict_int), Field(ge=1)]
AtLeastTwo = Annotated[int, BeforeValidator(strict_int), Field(ge=2)]
Number = Annotated[float, BeforeValidator(_not_bool)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
AboveZero = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Probability = Annotated[Number, Field(gt=0, le=1)]
AsItIs = PlainSerializer(lambda value: value, return_type=Any)  # pydantic would try each type of the union
RatioSchedule = Annotated[PartySchedule, PlainValidator(parse_party_schedule), AsItIs]
RateSchedule = Annotated[Schedule, PlainValidator(_learning_rate), AsItIs]


def name_in(registry: Registry) -> AfterValidator:
    """Return the check, for ``Annotated[str, ...]``, that a registry has a component of that name."""
    return AfterValidator(registry.check)


class Section(BaseModel):
    """A frozen group of settings that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

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
        """Return why a setting has no effect beside the others, by its dotted name in this section."""
        return {}


def section_of(kind: object) -> type[Section] | None:
    """Return the section that an annotation names, perhaps beside null; None for any other type."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return next((each for each in kinds if isinstance(each, type) and issubclass(each, Section)), None)


def section_of_values(kind: object) -> type[Section] | None:
    """Return the section that a mapping by name has for each name, as ``dict[str, TableConfig]``; else None."""
    return section_of(get_args(kind)[-1]) if get_origin(kind) is dict else None


def ignored_settings(section: Section, prefix: str = "") -> list[str]:
    """Return a line for every setting that a user gave, in a section or those in it, and that has no effect."""
    reasons = section.ignored()
    lines = [f"{prefix}{name}: ignored, {reason}" for name, reason in reasons.items() if is_given(section, name)]
    for name in (*type(section).model_fields, *(section.model_extra or ())):
        inner = getattr(section, name)
        if isinstance(inner, Section) and name not in reasons:  # of a section without effect one line is enough
            lines += ignored_settings(inner, f"{prefix}{name}.")
    return lines


def is_given(section: Section, name: str) -> bool:
    """Return whether a user gave a setting another value than it has anyway, by its dotted name in a section."""
    *parents, last = name.split(".")
    for parent in parents:
        section = getattr(section, parent)
    field = type(section).model_fields.get(last)
    if last not in section.model_fields_set or field is None:  # the latter of a section that another package checks
        return last in section.model_fields_set
    return getattr(section, last) != field.get_default(call_default_factory=True, validated_data={})
