"""The orders of a round in sequence: the exchange that each asks for, and the exchange whose update it brings.

With staleness s parties are s exchanges ahead: order t asks for the embeddings of exchange t and brings the update of t
- 1 - s, so that s + 1 orders are under way. The first s + 1 bring none. When no exchange is left to ask for, s orders
only bring an update, and the end of the round brings the last one.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from vfl.messages.control import LocalRounds
from vfl.messages.messages import MEASURING, Kind, Message, MessageError, place_of


class Order(NamedTuple):
    """An order to all parties."""

    kind: Kind
    exchange: int
    """Exchange in the message; 0 for END_ROUND."""
    brings: int | None
    """Exchange whose update comes along; None without an update."""


def orders_of(steps: int, staleness: int) -> list[Order]:
    """Return the orders of a round of ``steps`` exchanges, more than ``staleness``."""
    embeds = [Order(Kind.EMBED, each, each - 1 - staleness if each > staleness else None) for each in range(steps)]
    updates = [Order(Kind.UPDATE, each, each - 1 - staleness) for each in range(steps, steps + staleness)]
    return [*embeds, *updates, Order(Kind.END_ROUND, 0, steps - 1)]


def rounds_done(request: Message) -> int | None:
    """Return the number of rounds that are done once an order is answered; None for one that ends no round."""
    if request.kind is Kind.TRAIN_ALONE:
        return request.round_index + len(LocalRounds.of(request).rounds)
    return request.round_index + 1 if request.kind is Kind.END_ROUND else None


@dataclass
class Agenda:
    """A party's position in its training; decides which order of a remote server is due."""

    party: str
    steps: int
    """Number of exchanges in a round."""
    staleness: int
    rounds_begun: int = 0
    local_rounds: int = 0
    """First rounds, which the party trains alone."""
    _due: deque[Order] = field(default_factory=deque[Order])
    """Orders of the present round still to come."""

    def check(self, request: Message) -> None:
        """Accept the next order. Raises MessageError, before anything is computed, for one that is not due."""
        if request.kind in MEASURING:
            return
        if request.kind is Kind.TRAIN_ALONE:
            self._check_local(request)
        elif request.kind is Kind.START_ROUND:
            if request.round_index != self.rounds_begun:
                raise MessageError(f"round {request.round_index + 1} came where {self.rounds_begun + 1} is due")
            if request.round_index < self.local_rounds:
                raise MessageError(f"round {request.round_index + 1} came, the first {self.local_rounds} are local")
            self.rounds_begun += 1
            self._due = deque(orders_of(self.steps, self.staleness))
        elif request.kind in (Kind.EMBED, Kind.UPDATE, Kind.END_ROUND):
            self._check_in_round(request)
        else:
            raise MessageError(f"{self.party} cannot answer {request.kind.name}")

    def _check_local(self, request: Message) -> None:
        end = request.round_index + len(LocalRounds.of(request).rounds)
        if self._due or request.round_index != self.rounds_begun:
            raise MessageError(f"local round {request.round_index + 1} came where {self.rounds_begun + 1} is due")
        if end > self.local_rounds:
            raise MessageError(f"{end} local rounds came, {self.local_rounds} are agreed")
        self.rounds_begun = end

    def _check_in_round(self, request: Message) -> None:
        due, round_index = self._due[0] if self._due else Order(Kind.START_ROUND, 0, None), self.rounds_begun - 1
        if (request.kind, request.round_index, request.exchange) != (due.kind, round_index, due.exchange):
            came = place_of(request.kind, request.round_index, request.exchange)
            raise MessageError(f"{self.party} is not at {came}, but at {place_of(due.kind, round_index, due.exchange)}")
        if due.brings is None and request.parts:
            raise MessageError(f"an update came to {self.party} before the round's first embedding")
        self._due.popleft()
