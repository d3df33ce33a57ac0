"""Errors shown to the user in one line: bad input, lost peers, diverged training; those that may pass; near names."""

import difflib
import errno
from collections.abc import Sequence

PASSING = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EADDRINUSE}
"""System errors that may pass: a full disk or memory, too many open files, a port in use."""


def one_line(error: BaseException) -> str:
    """Return an error's text without line ends, or else its type; for a file's error its path and the reason."""
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    return " ".join(text.split()) or type(error).__name__


def printable(text: str) -> str:
    """Return text with control characters escaped, which a terminal would obey."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def with_type(error: BaseException) -> str:
    """Return a foreign error's type and text, without line ends."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


class ConfigError(ValueError):
    """A setting, a file or an option is wrong; the text is one line that names it and the fix."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.splitlines()))  # keys and values of a user's may hold line ends


class TryLater(ConfigError):  # noqa: N818 - says what to do
    """A condition that may pass: the same input may succeed later."""


def may_pass(error: BaseException) -> bool:
    """Return whether the same may succeed later, judged by the error or its cause (``PASSING``)."""
    found = isinstance(error, TryLater | MemoryError) or (isinstance(error, OSError) and error.errno in PASSING)
    before = error.__cause__ or error.__context__
    return found or (before is not None and may_pass(before))


class Diverged(ValueError):  # noqa: N818 - says what happened
    """Training produced infinity or NaN; ``found`` tells where, such as "loss/train is not finite"."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}: lower training.optimizer.learning_rate")


class PeerLost(RuntimeError):  # noqa: N818 - says what happened
    """The other side is gone, frozen or cut off; the text names it and how this was noticed."""


class PeerMisbehaved(PeerLost):
    """A party broke the protocol or refused to continue. It is lost, as if it had died."""

    def __init__(self, party: str, what: str) -> None:
        super().__init__(f"{party} is lost: {what}")
        self.party = party
        self.what = what


LONGEST = 300
"""Most characters of another process's text that are shown."""


def plain(text: str, longest: int = LONGEST) -> str:
    """Return another process's text in one line: blanks for white space, other unprintable characters escaped, cut."""
    # Cut first, as a stranger's text may be long, but not to the end yet: joining blanks shortens it.
    shown = "".join(each if each.isprintable() else _escaped(each) for each in " ".join(text[: 2 * longest].split()))
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()


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
