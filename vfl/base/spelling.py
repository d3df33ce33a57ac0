"""Names that are nearly known ones, for the ends of error lines."""

import difflib
from collections.abc import Sequence


def nearest_name(name: str, known: Sequence[str]) -> str:
    """Return the end of an error line about an unknown name: the nearest known one, or all of them."""
    return did_you_mean(name, known) or f"; known: {', '.join(known)}"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return the end of an error line that names the nearest known name; empty where none is near."""
    near = closest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def closest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that a name begins, or is almost; None where none is near."""
    begun = [each for each in known if name and each.startswith(name)]
    return next(iter(begun or difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)
