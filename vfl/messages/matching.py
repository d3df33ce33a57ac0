"""Content of the control parts of a match (see ``control.py``)."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from vfl.messages.control import Control, Count, Sha256

Place = Annotated[int, Field(ge=0, lt=2**31)]
"""Index in a list or among the samples."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
MOST_LISTS = 64
CHUNK = 1 << 13
"""Points per message: less than half a second of work."""


class Brought(Control):
    """BROUGHT: the sizes of a party's lists, and the label owner's own fields. Public keys of the lists are in the
    message."""

    order: Sha256 | None = None
    """Order of a match that the party has in its folder and that still fits its keys."""
    lists: Annotated[tuple[Place, ...], Field(min_length=1, max_length=MOST_LISTS)]
    samples: Place | None = None
    tested: Place | None = None
    """Number of test samples, which are the last ones; left out if the seed draws them."""
    known_as: Annotated[dict[Name, Place], Field(max_length=MOST_LISTS)] | None = None
    """Index of the list whose keys another party uses, by party."""

    @model_validator(mode="after")
    def _of_one_role(self) -> Self:
        if (self.samples is None) != (self.known_as is None):
            raise ValueError("samples: and known_as belong together")
        if self.tested is not None and self.tested > (self.samples or 0):
            raise ValueError("tested: above samples")
        if any(place >= len(self.lists) for place in (self.known_as or {}).values()):
            raise ValueError("known_as: names an unknown list")
        return self


class OwnList(Control):
    """RAISE and PROVE: the index of the party's scalar; each of its lists has one."""

    list: Place = 0


class ListRange(OwnList):
    """LIST and PLACES: a part of one of the lists, or of the samples' places in it."""

    start: Place
    stop: Place


class Matched(Control):
    """MATCHED: the place of this part within the result."""

    order: Sha256
    samples: Place
    start: Count
    tested: Place | None = None

    @model_validator(mode="after")
    def _of_samples(self) -> Self:
        if (self.tested or 0) > self.samples:
            raise ValueError("tested: above samples")
        return self
