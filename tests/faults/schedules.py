"""What a seed has happen to a training, and how the training must end all the same."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from faults.federation import SERVER, Ended, Federation, ahead, simulating
from faults.network import OVER, End
from faults.turns import Turns
from tiny_training import outcome_of

from vfl.parties.network.wire.frame import HEADER_BYTES

LIMIT_S = 1200.0
"""By then a training of two seconds must be over, whatever happens to it."""
MOST_FAULTS = 6
SPAN_S = 8.0
"""Faults begin within it, most of them early: a training takes two seconds, and the longer the more happens to it."""
POLICIES = ("wait", "wait", "wait", "wait", "drop", "abort")


def cut(federation: Federation, draw: Random) -> str:
    """A connection is reset, for one side at once and for the other perhaps never."""
    end = _end(federation, draw)
    end.send(OVER)
    if both := draw.random() < 0.5:
        end.other.send(OVER)
    end.swallows = end.other.swallows = True
    return f"{_told(end)}: the connection is reset for {'both' if both else 'the latter'}"


def half_open(federation: Federation, draw: Random) -> str:
    """What one side writes, or both, arrives nowhere."""
    end = _end(federation, draw)
    end.swallows, end.other.swallows = True, draw.random() < 0.5
    return f"{_told(end)}: nothing arrives{' either way' if end.other.swallows else ''}"


def delay(federation: Federation, draw: Random) -> str:
    """What is under way arrives late."""
    end, seconds = _end(federation, draw), draw.uniform(0.1, 10)
    end.arrives_s = federation.turns.now_s + seconds
    return f"{_told(end)}: {seconds:.1f} s late"


def unreachable(federation: Federation, draw: Random) -> str:
    """Nobody can dial the server."""
    seconds = draw.uniform(0.1, 30)
    federation.network.unreachable_until_s = federation.turns.now_s + seconds
    return f"the server cannot be dialled for {seconds:.1f} s"


def freeze(federation: Federation, draw: Random) -> str:
    """A process stands still."""
    name, seconds = _name(federation, draw), draw.uniform(0.1, 20)
    federation.running[name].frozen_until_s = federation.turns.now_s + seconds
    return f"{name} is frozen for {seconds:.1f} s"


def busy(federation: Federation, draw: Random) -> str:
    """A process computes for long; its heartbeats go on."""
    name, seconds = _name(federation, draw), draw.uniform(0.1, 40)
    federation.running[name].busy_until_s = federation.turns.now_s + seconds
    return f"{name} is busy for {seconds:.1f} s"


def kill(federation: Federation, draw: Random) -> str:
    """A process dies, or its machine does, and comes back with what is on its disk."""
    name, again_s, silently = _name(federation, draw), draw.uniform(0.0, 20), draw.random() < 0.3
    federation.kill(name, again_s, silently=silently)
    return f"{name} is killed{' with its machine' if silently else ''}, back in {again_s:.1f} s"


def lose_folder(federation: Federation, draw: Random) -> str:
    """A party dies and its disk with it; its owner restores the folder when the server asks for it."""
    name = draw.choice(sorted(federation.running.keys() - {SERVER}))
    federation.lose_folder(name)
    federation.misbehaved = True
    return f"{name} is killed and its folder lost"


def terminate(federation: Federation, draw: Random) -> str:
    """A process is asked to end."""
    name = _name(federation, draw)
    federation.running[name].signals.append(15)
    return f"{name} gets SIGTERM"


def misbehave(federation: Federation, draw: Random) -> str:
    """A peer sends what it must not."""
    end, what = _end(federation, draw), draw.choice([*MISBEHAVIOURS])
    end.change = lambda message: MISBEHAVIOURS[what](message, draw)
    federation.misbehaved = True
    return f"{_told(end)}: the next message is {what}"


def _forged(message: bytes, draw: Random) -> list[bytes]:
    """Add to one of the header's fields but the number of parts and the length: run, session, sequence, ..."""
    place = draw.choice([0, 1, 2, 6, 12, 20, 24])
    forged = bytearray(message)
    if len(forged) >= HEADER_BYTES:
        forged[place] = (forged[place] + draw.choice([1, 7])) % 256
    return [bytes(forged)]


MISBEHAVIOURS: dict[str, Callable[[bytes, Random], list[bytes]]] = {
    "doubled": lambda message, draw: [message, message],
    "left out": lambda message, draw: [],
    "cut short": lambda message, draw: [message[: draw.randrange(len(message))]],
    "noise": lambda message, draw: [draw.randbytes(draw.randrange(1, 200))],
    "forged": _forged,
}
FAULTS = (cut, half_open, delay, unreachable, freeze, busy, kill, kill, lose_folder, terminate, misbehave)


def _end(federation: Federation, draw: Random) -> End:
    return draw.choice(federation.network.open_ends())


def _name(federation: Federation, draw: Random) -> str:
    return draw.choice(sorted(federation.running))


def _told(end: End) -> str:
    return f"{end.process.name} to {end.other.process.name}"


STATED = {
    (True, 3): r"did not join within network\.wait_s|has misbehaved \d times, network\.max_offences is|"
    r"network\.on_party_loss is abort|no party is left",
    (False, 3): r"stayed away for network\.wait_s|^$",  # of its own, or as the server ended
}
"""The errors with which a process may end: whether it is the server, and its exit code."""
MISTAKEN = r"^the server: |^refused by the server: |came|^no checkpoint after round \d+ in"
"""Those of a party with exit code 2, where somebody misbehaved."""


@dataclass
class Verdict:
    """How a schedule went."""

    seed: int
    policy: str
    happened: list[str]
    ended: list[str]
    wrong: str
    """What must not be; empty where all is well."""
    seconds: float
    """Of the simulated clock."""
    trace: str
    """Digest of all turns."""
    said: dict[str, str]
    """What the processes of each name showed."""


def play(seed: int, folder: Path, data: Path, undisturbed: list[dict[str, Any]]) -> Verdict:
    """Train under the faults of a seed; every other one with parties that are ahead."""
    turns, happened = Turns(seed, LIMIT_S), list[str]()
    policy = turns.random.choice(POLICIES)
    with simulating(turns):
        staleness = seed % len(undisturbed)
        settings = ahead(staleness) | {"network": {"on_party_loss": policy}}
        federation = Federation(turns, folder, data, settings)

        def strike() -> None:
            fault = turns.random.choice(FAULTS)
            if {*federation.running} - {SERVER} and federation.network.open_ends() and not federation.finished:
                happened.append(f"{turns.now_s:.1f} {fault(federation, turns.random)}")

        for _ in range(turns.random.randint(1, MOST_FAULTS)):
            turns.at(turns.random.uniform(0, SPAN_S) ** 2 / SPAN_S, strike)
        federation.run()
    ended = [f"{each.time_s:.1f} {each.name} {each.code} {each.text}" for each in federation.ended]
    said = {name: text.getvalue() for name, text in federation.said.items()}
    wrong = turns.failure[0] if turns.failure else _wrong(federation, policy, undisturbed[staleness])
    return Verdict(seed, policy, happened, ended, wrong, turns.now_s, turns.trace.hexdigest(), said)


def _wrong(federation: Federation, policy: str, undisturbed: dict[str, Any]) -> str:
    """Return what must not have happened."""
    for ended in federation.ended:
        if not _is_stated(ended, misbehaved=federation.misbehaved):
            return f"{ended.name} ended with {ended.code}: {ended.text}"
    away = any(ended.code != 0 for ended in federation.ended) or "; dropped:" in federation.said[SERVER].getvalue()
    outcome = outcome_of(federation.folder / SERVER)
    return "" if outcome == undisturbed or (policy == "drop" and away) else f"another outcome: {json.dumps(outcome)}"


def _is_stated(ended: Ended, *, misbehaved: bool) -> bool:
    if ended.code in (0, 130, None):
        return True
    if ended.name != SERVER and ended.code == 2:
        return misbehaved and bool(re.search(MISTAKEN, ended.text))
    return bool(re.search(STATED.get((ended.name == SERVER, ended.code), "never"), ended.text))
