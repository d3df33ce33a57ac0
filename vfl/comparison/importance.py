"""Importance of each party's columns: what the test loses when the party permutes one of them (Breiman 2001).

The party permutes its own prepared values and answers with embeddings, in one process and over processes alike. The
server knows columns by number only; it tells each party the results of its own columns, whose names stay there.

Shapes: B batch, M test samples, C outputs.
"""
# pyright: reportUnknownMemberType=false
# numpy's signatures are partly untyped.

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from vfl.base.estimates import auc
from vfl.base.metrics import LOWER_IS_BETTER
from vfl.core.joint_model import JointModel
from vfl.core.parties import PartyProxy
from vfl.core.tasks import Task
from vfl.messages.control import MOST_DRAWS, ColumnCount, ColumnImportance, Permuted
from vfl.messages.messages import Kind, Message

ENOUGH_ROWS = 20_000
"""Permuted rows of a column, over its draws, that are enough: large tables have one draw."""


def column_importance(joint: JointModel) -> dict[str, ColumnImportance]:
    """Return the importance of all columns by party, and tell each party its own.

    Raises PeerLost for a party that does not answer, or has not agreed (``network.consent.importance``).
    """
    spans = [*joint.batches()]
    embeddings = [joint.embeddings(*span) for span in spans]
    labels_M, task = joint.samples.values, joint.task
    sign = -1.0 if task.metric in LOWER_IS_BETTER else 1.0
    draws = min(MOST_DRAWS, max(1, ENOUGH_ROWS // len(labels_M)))

    def predicted(batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
        return torch.cat([task.predictions(joint.outputs(each)).cpu() for each in batches])

    def permuted(party: PartyProxy, permuted: Permuted) -> Tensor:
        own = (joint.permuted(party, *span, permuted) for span in spans)
        return predicted(each | {party.name: own_BD} for each, own_BD in zip(embeddings, own, strict=True))

    before = metric_of(task, predicted(embeddings), labels_M)
    importances: dict[str, ColumnImportance] = {}
    for party in joint.present:
        losses: list[float] = []
        counted = party.ask(Message(Kind.COLUMNS)).read(ColumnCount.of)
        for column in range(counted.columns if counted else 0):
            answers = (permuted(party, Permuted(column=column, draw=draw)) for draw in range(draws))
            after = sum(metric_of(task, each, labels_M) for each in answers) / draws
            losses.append(sign * (before - after))
        importances[party.name] = ColumnImportance(lost=tuple(losses))
        party.ask(Message(Kind.IMPORTANCE, parts=(importances[party.name].part(),))).wait()
    return importances


def metric_of(task: Task, predictions_MC: Tensor, labels_M: Tensor) -> float:
    """Return only the task's metric, fast for a bootstrap."""
    if task.metric == "auc":
        return auc(predictions_MC[:, 1].numpy(), labels_M.numpy() == 1)
    return task.metrics(predictions_MC, labels_M)[task.metric]
