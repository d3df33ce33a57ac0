"""How often parties have misbehaved: each may come back, but not for ever."""

from collections import Counter

from vfl.errors import PeerLost, PeerMisbehaved


class Offences:
    """Counts what parties did wrong, by name, for as long as this process lives.

    Args:
        allowed: so often a party may come back, network.max_offences.
    """

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self._counts = Counter[str]()

    def note(self, lost: PeerLost) -> str | None:
        """Count a loss if the party misbehaved; return why it may not come back, None where it may."""
        if not isinstance(lost, PeerMisbehaved):
            return None
        self._counts[lost.party] += 1
        if self._counts[lost.party] <= self.allowed:
            return None
        return (
            f"{lost.party} has misbehaved {self._counts[lost.party]} times, network.max_offences is {self.allowed}; "
            f"last: {lost.what}"
        )
