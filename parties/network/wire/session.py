"""Content of the control parts of messages between processes (see ``control.py``): joining, checkpoints, the end."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from vfl.base.errors import plain
from vfl.messages.control import Control, Sha256
from vfl.messages.messages import Kind, Message, MessageError

FAREWELL_S = 10.0
"""Seconds that either side has to hang up at the end."""
MOST_ROUNDS = 10_000
"""Saved rounds that a hello may name."""
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,64}$")]
"""Identifier of a party or a process, or a digest."""
Number = Annotated[int, Field(ge=0, lt=2**32)]
Prose = Annotated[str, AfterValidator(plain)]


class Hello(Control):
    """HELLO: a party's name, and the values that must agree with the server's."""

    party: Identifier
    instance: Identifier = ""
    """Random per process: tells a party that dials again from a second one of the same name."""
    embedding_width: Number = 0
    agreement: str
    """Settings that both sides must share, as JSON: {dotted key: value}."""
    train_ids: Identifier = ""
    """sha256 of the ordered sample ids, and of the labels where the party holds a copy."""
    test_ids: Identifier = ""
    labels: Identifier = ""
    rounds: Annotated[tuple[Number, ...], Field(max_length=MOST_ROUNDS)] = ()
    """Rounds of the run whose checkpoints the party has on disk."""
    only_asks: bool = False
    """The answer is as for a party, but nobody is let in."""


class Welcome(Control):
    """WELCOME: heartbeat interval, longest silence, and the plan of the training."""

    heartbeat_s: float
    silence_s: float
    terms: str
    """The server's plan for training with this party, as JSON: rounds, schedules of alpha and beta, test rows."""


class Refusal(Control):
    """REFUSAL: the last word on a stream."""

    reason: Prose
    again: bool = False
    """The reason may pass: dial again."""


class Restore(Control):
    """RESTORE: restore the state after ``round`` rounds, from the checkpoint with this digest; round 0: the initial
    state, with a digest that of the checkpoint in the run that the party starts from."""

    round: Number = 0
    digest: Identifier = ""
    as_of: Number = 0
    """Rounds that count as done; more than ``round`` for a party that was absent meanwhile."""


class Save(Control):
    """SAVE: save the state after ``round`` rounds."""

    round: Number


class Saved(Control):
    """SAVED: the checkpoint's digest."""

    digest: Sha256


class Goodbye(Control):
    """GOODBYE: the server's exit code. 0 done, 2 bad input, 3 a party lost, 75 may pass, 130 interrupted."""

    exit_code: Literal[0, 2, 3, 75, 130] = 0
    reason: Prose = ""


def refusal(reason: str, *, again: bool = False) -> Message:
    """Return the last word on a stream. ``again``: the reason may pass, so the other side may dial again."""
    return Message(Kind.REFUSAL, parts=(Refusal(reason=reason, again=again).part(),))


def check_run(message: Message, run: str) -> None:
    """Raise MessageError for a message of another run."""
    if message.run != run:
        raise MessageError(f"{message.kind.name} of run {message.run or '(none)'} came, this is run {run}")
