"""Errors shown to the user: bad input, lost peers, diverged training; those that may pass; near names.

An error is a setting, a reason and a remedy. Each edge renders them as one line in the words of its caller: a command
line names options, Python names arguments (`in_words`).
"""

import difflib
import errno
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Literal, NamedTuple

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


class Argument(StrEnum):
    """What a caller gives with a call, by the option that a command has for it."""

    DATA = "--data"
    TABLE = "--table"
    REASONS = "--reasons"
    REASONS_OF = "--reasons-of"
    REASONS_STEPS = "--reasons-steps"
    WHEN_ABSENT = "--when-absent"
    RESUME = "--resume"


WhenAbsent = Literal["refuse", "placeholder", "zeros", "mean", "own"]
"""Values of ``--when-absent``: what replaces the embedding of an owner without a row (`serving.when_absent`)."""
Words = Mapping[str, str]
"""What a caller calls each argument that it has."""
COMMAND: Words = {each: each for each in Argument}
_words: ContextVar[Words] = ContextVar("words", default=COMMAND)


class Choice(NamedTuple):
    """A remedy: another value of an argument."""

    argument: Argument
    values: tuple[str, ...]
    effect: str
    """What the value would do: a verb and its object."""
    otherwise: str = ""
    """The remedy of a caller without the argument."""

    def in_words(self, words: Words) -> str:
        """Return ``--option a or b EFFECT``, or in Python ``argument='a' or 'b' EFFECT``."""
        if (name := words.get(self.argument)) is None:
            return self.otherwise
        separator, values = (" ", self.values) if name.startswith("--") else ("=", [repr(each) for each in self.values])
        return f"{name}{separator}{' or '.join(filter(None, [', '.join(values[:-1]), values[-1]]))} {self.effect}"


class Explanation(Exception):  # noqa: N818 - a warning is one as well
    """What an error or a warning says: ``setting, place: reason; remedy``, as one line that is split, or in parts."""

    setting: str
    """Setting, option, argument or file that is wrong; empty where none is named."""
    place: str
    """Row or column of the setting."""
    reason: str
    remedy: str | Choice

    def __init__(self, line: str, remedy: Choice | None = None) -> None:
        head, colon, rest = " ".join(line.splitlines()).partition(": ")  # a user's keys and values may hold line ends
        self.setting, _, self.place = head.partition(", ") if colon else ("", "", "")
        self.reason, _, fix = (rest if colon else head).partition("; ")
        self.remedy = fix if remedy is None else remedy
        super().__init__(self.in_words(_words.get()))

    def in_words(self, words: Words) -> str:
        """Return the line in a caller's words."""
        where = ", ".join(filter(None, [words.get(self.setting, self.setting), self.place]))
        fix = self.remedy.in_words(words) if isinstance(self.remedy, Choice) else self.remedy
        return "; ".join(filter(None, [f"{where}: {self.reason}" if where else self.reason, fix]))


def in_words(said: BaseException, words: Words) -> str:
    """Return the text of an error or a warning in a caller's words."""
    return said.in_words(words) if isinstance(said, Explanation) else str(said)


@contextmanager
def use_words(words: Words) -> Generator[None]:
    """Turn user errors into ConfigError in a caller's words, and write warnings in them."""
    before = _words.set(words)
    try:
        yield
    except (ValueError, PeerLost) as error:
        raise ConfigError(in_words(error, words)) from None
    finally:
        _words.reset(before)


class ConfigError(Explanation, ValueError):
    """A setting, a file or an option is wrong; the line names it and the fix."""


class ConfigWarning(Explanation, UserWarning):
    """A setting or an option does not do what its user may expect."""


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


class PeerLost(Explanation, RuntimeError):  # noqa: N818 - says what happened
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
    shown = printable(" ".join(text[: 2 * longest].split()))
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


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
