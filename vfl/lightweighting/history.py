"""The pruning history of a model: what a checkpoint stores beside pruned weights, which do not fit the dense model."""

from collections.abc import Mapping
from typing import Any, TypedDict


class PruningEvent(TypedDict):
    """One pruning of a model, as JSON."""

    alpha: float
    removed: dict[str, list[int]]
    """Channels removed, by the first layer of their group, counted in the widths just before the event."""


class PruningState(TypedDict):
    """Everything that separates a pruned model's structure from the dense one's, as JSON."""

    alpha_max: float
    history: list[PruningEvent]


def checked_state(state: Mapping[str, Any], widths: Mapping[str, int]) -> PruningState:
    """The pruning state, read strictly; ValueError unless it fits groups of these original widths, by first layer."""
    try:
        alpha_max = float(state["alpha_max"])
        history = [
            PruningEvent(
                alpha=float(event["alpha"]),
                removed={str(name): [int(i) for i in channels] for name, channels in event["removed"].items()},
            )
            for event in state["history"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"pruning state: malformed ({error!r})") from error
    if not 0 <= alpha_max < 1:
        raise ValueError(f"pruning state: expected 0 <= alpha_max < 1, got {alpha_max}")
    left = dict(widths)
    for event in history:
        for name, channels in event["removed"].items():
            distinct = set(channels)
            if name not in left or not distinct < set(range(left[name])) or len(distinct) < len(channels):
                raise ValueError(f"pruning state: its removals from {name!r} do not fit this model")
            left[name] -= len(channels)
    return {"alpha_max": alpha_max, "history": history}
