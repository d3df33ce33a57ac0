"""Settings that the server and a party must have in common: each field carries a mark, these functions collect them."""

from collections.abc import Iterator
from enum import Enum
from operator import attrgetter
from typing import Any

from pydantic import BaseModel

from vfl.config.settings import section_of


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
