"""The cost of each pruning of a run, read from its accuracy over the rounds."""

from dataclasses import dataclass

from scripts.lab.studies.runs import StudyResult


@dataclass(frozen=True)
class Pruning:
    """One pruning of a run. Accuracies are those at the end of a round, in [0, 1]."""

    round_index: int
    alpha: float
    """Mean over the parties, after the pruning."""
    before: float
    """Accuracy one round earlier."""
    during: float
    """Accuracy at the end of the pruning's own round, whose other exchanges have already repaired some of the loss."""
    recovery_rounds: int | None
    """Rounds until the accuracy was at least ``before`` again, 0 if it never fell below; None if not before
    ``until``."""
    until: int
    """First round not considered for recovery: the next pruning's, or the end."""

    @property
    def drop(self) -> float:
        """Return the accuracy lost from one round to the next; negative if it rose."""
        return self.before - self.during


def prunings(result: StudyResult) -> list[Pruning]:
    """Return the rounds in which alpha rose; not round 0, before which there is no accuracy."""
    # Both have an entry for every round, as plan.py asks for evaluation.every: 1. So their positions are rounds.
    alphas, accuracy = result.mean_over_parties("alpha"), result.accuracies
    rises = [index for index in range(1, len(alphas)) if alphas[index] > alphas[index - 1]]
    found: list[Pruning] = []
    for start, until in zip(rises, [*rises, len(alphas)][1:], strict=True):
        before = accuracy[start - 1]
        recovered = (index - start for index in range(start, until) if accuracy[index] >= before)
        found.append(Pruning(start, alphas[start], before, accuracy[start], next(recovered, None), until))
    return found
