"""The orders of a round, in turn: which exchange each asks for, and whose update it brings.

With staleness s parties are s exchanges ahead: order t asks for the embeddings of exchange t and brings the update of
t - 1 - s, so that s + 1 orders are under way. The first s + 1 bring none. When no exchange is left to ask for, s orders
bring an update alone, and the end of the round brings the last one.
"""

from typing import NamedTuple

from vfl.wire.messages import Kind


class Order(NamedTuple):
    """What parties are sent."""

    kind: Kind
    exchange: int
    """As in the message; of the END_ROUND 0."""
    brings: int | None
    """The exchange whose update comes along."""


def orders_of(steps: int, staleness: int) -> list[Order]:
    """Return the orders of a round of so many exchanges, more than ``staleness``."""
    embeds = [Order(Kind.EMBED, each, each - 1 - staleness if each > staleness else None) for each in range(steps)]
    updates = [Order(Kind.UPDATE, each, each - 1 - staleness) for each in range(steps, steps + staleness)]
    return [*embeds, *updates, Order(Kind.END_ROUND, 0, steps - 1)]
