"""Settings of the wireless cell. They import nothing heavy, as every horizontal configuration has them."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vfl.config.settings import AboveZero, Number, Section


class WirelessConfig(Section):
    """The wireless cell through which clients send their updates; the defaults are the paper's for MNIST."""

    policy: Literal[
        "none",
        "greedy",
        "linear_program",
        "pre_tuned",
        "channel_proportion",
        "device_maximization",
        "computation_minimization",
    ] = "none"
    """Choice of the senders (docs/flare.md); none: no network."""
    deadline_s: AboveZero = 1.0
    """t_thr: longest round."""
    bandwidth_hz: AboveZero = 10e6
    """B, of the uplink."""
    transmit_power_w: AboveZero = 0.1
    """p; 0.1 W are 20 dBm."""
    noise_dbm_per_mhz: Annotated[Number, Field(ge=-1000, le=1000)] = -114.0
    """N0"""
    path_loss_1km_db: Annotated[Number, Field(ge=-1000, le=1000)] = 128.1
    """Path loss at 1 km."""
    path_loss_exponent: AboveZero = 3.76
    """n: 10 n dB at ten times the distance."""
    fading: Literal["none", "rayleigh"] = "none"
    """rayleigh: gains vary by client and round."""
    distance_min_m: AboveZero = 100.0
    """Clients' distances are uniform from this on."""
    distance_max_m: AboveZero = 500.0
    """Largest distance."""
    cpu_min_hz: AboveZero = 2e9
    """Clients' processors are uniform from this on."""
    cpu_max_hz: AboveZero = 4e9
    """Fastest processor."""
    cycles_per_sample: AboveZero = 689_920.0
    """C: 110 cycles per bit, 28 x 28 pixels of 8 bits."""
    update_bits: AboveZero | None = None
    """S, a client's upload; null: its real size."""

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        for low, high in (("distance_min_m", "distance_max_m"), ("cpu_min_hz", "cpu_max_hz")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(
                    f"{low}: {getattr(self, low):g} is above {high} = {getattr(self, high):g}; lower it (or raise that)"
                )
        return self

    def ignored(self) -> Mapping[str, str]:
        """Return the settings of the cell if there is none, unless a policy was switched off on purpose."""
        if self.policy != "none" or "policy" in self.model_fields_set:
            return {}
        return dict.fromkeys(type(self).model_fields, "horizontal.wireless.policy is none")
