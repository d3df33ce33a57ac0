"""Machines and links of parties and clients on a virtual clock."""

from pydantic import Field

from vfl.config.schedules import Schedule, value_at
from vfl.config.settings import NotNegative, RateSchedule, Section

ALL = "all"
"""Stands for every party that is not named; no party may have this name."""


class LinkConfig(Section):
    """A machine's link to the server."""

    latency_s: NotNegative = 0.0
    """Simulated seconds per round trip, or per client and round."""
    uplink_bytes_per_s: RateSchedule | None = None
    """null: no simulated time."""
    downlink_bytes_per_s: RateSchedule | None = None
    """null: no simulated time."""

    def downlink_s(self, round_index: int, size: int) -> float:
        """Return the simulated seconds that ``size`` bytes take to the machine, without latency."""
        return seconds(self.downlink_bytes_per_s, round_index, size)

    def uplink_s(self, round_index: int, size: int) -> float:
        """Return the simulated seconds that ``size`` bytes take from the machine, without latency."""
        return seconds(self.uplink_bytes_per_s, round_index, size)


class DeviceConfig(LinkConfig):
    """A party's machine and its link."""

    macs_per_s: RateSchedule | None = None
    """Multiply-accumulates per simulated second; null: no time."""

    def compute_s(self, round_index: int, macs: int) -> float:
        """Return the simulated seconds that ``macs`` multiply-accumulates take."""
        return seconds(self.macs_per_s, round_index, macs)


class SimulationConfig(Section):
    """The virtual clock of vertical learning in one process: how long exchanges would take on the parties' own
    machines. Separate processes use the real clock."""

    parties: dict[str, DeviceConfig] = Field(default={})
    """Machine and link of each party; those of ``all`` for every party that is not named."""

    def of(self, party: str) -> DeviceConfig:
        """Return a party's machine."""
        return self.parties.get(party) or self.parties.get(ALL) or DeviceConfig()

    @property
    def given(self) -> bool:
        """Return whether any machine or link takes simulated time."""
        return any(each != DeviceConfig() for each in self.parties.values())


def seconds(rate: Schedule | None, round_index: int, amount: float) -> float:
    """Return the simulated seconds of ``amount`` at a rate per second, which may change over the rounds; 0 without."""
    return 0.0 if rate is None else amount / value_at(rate, round_index)
