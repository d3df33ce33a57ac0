"""A party's view of a round: its own embeddings as sent, and the gradients received, by training row.

An audit looks at a round in memory; a party process with ``privacy.record`` keeps its last round in its own folder.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# safetensors' reader is untyped.

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vfl.base.errors import ConfigError
from vfl.core.augmentation import ShiftedViews
from vfl.core.label_protocol import PartyProtocol, ReceivedGradient
from vfl.runs.atomic import write_atomically
from vfl.runs.run_folder import private_files

SEEN = "seen.safetensors"


@dataclass(frozen=True)
class Recording:
    """Messages of a party in a round, by training row."""

    party: str
    round_index: int
    rows_N: Tensor
    embeddings_ND: Tensor
    gradients_ND: Tensor | None
    """None if labels are shared."""
    shifts_N2: Tensor | None = None
    """Pixels by which each image was shifted, down and right; None if none was."""


@dataclass(eq=False)
class MessageRecorder:
    """Records the messages of a party's present round by training row."""

    views: ShiftedViews | None
    """The views of the party's rows that were embedded."""
    rows: list[Tensor] = field(default_factory=list[Tensor], init=False)
    embeddings: list[Tensor] = field(default_factory=list[Tensor], init=False)
    shifts: list[Tensor] = field(default_factory=list[Tensor], init=False)
    """Shifts of the images; empty if there are none."""
    gradients: list[Tensor] = field(default_factory=list[Tensor], init=False)
    """Received gradients; empty if labels are shared."""
    round_index: int = field(default=-1, init=False)
    """Round that was recorded, -1 for none."""

    def start_round(self, round_index: int) -> None:
        """Forget the round before."""
        self.round_index = round_index
        for recorded in (self.rows, self.embeddings, self.shifts, self.gradients):
            recorded.clear()

    def record(self, protocol: PartyProtocol, exchange: int, rows_n: Tensor, sent_nD: Tensor) -> None:
        """Record the embedding of some rows, and the update that has just answered it."""
        self.rows.append(rows_n)
        # Copies: the party goes on to compute with these tensors.
        self.embeddings.append(sent_nD.cpu().clone())
        if self.views is not None and (shifts_n2 := self.views.shifts(rows_n, self.round_index, exchange)) is not None:
            self.shifts.append(shifts_n2)
        if isinstance(protocol, ReceivedGradient) and len(sent_nD):
            self.gradients.append(protocol.gradient(sent_nD).cpu().clone())

    def recording(self, party: str) -> Recording:
        """Return what was recorded of a party's round."""
        gradients_ND = torch.cat(self.gradients) if self.gradients else None
        shifts_N2 = torch.cat(self.shifts) if self.shifts else None
        rows_N, embeddings_ND = torch.cat(self.rows), torch.cat(self.embeddings)
        return Recording(party, self.round_index, rows_N, embeddings_ND, gradients_ND, shifts_N2)


def write_recording(seen: Recording, folder: Path) -> None:
    """Write a recording into the party's folder, readable only by its user, in place of an earlier round's."""
    tensors = {"rows": seen.rows_N, "embeddings": seen.embeddings_ND}
    if seen.gradients_ND is not None:
        tensors["gradients"] = seen.gradients_ND
    if seen.shifts_N2 is not None:
        tensors["shifts"] = seen.shifts_N2
    named = {"party": seen.party, "round": str(seen.round_index)}
    with private_files():
        write_atomically(folder / SEEN, save({name: each.contiguous() for name, each in tensors.items()}, named))


def read_recording(folder: Path) -> Recording:
    """Read what a party process has recorded. Raises ConfigError if there is nothing, or it is damaged."""
    path = folder / SEEN
    if not path.exists():
        raise ConfigError(f"{path} does not exist; let that party train with privacy.record=true")
    try:
        with safe_open(path, framework="pt") as opened:
            file: Any = opened
            named, found = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        tensors = found["rows"], found["embeddings"], found.get("gradients"), found.get("shifts")
        recorded = Recording(named["party"], int(named["round"]), *tensors)
    except (OSError, SafetensorError, LookupError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); copy it again from the party") from None
    return recorded
