"""A head with a linear classifier on each party's embedding beside it.

With one loss on the joint answer, a party's model stops learning as soon as the others answer for it (Du et al., "On
uni-modal feature learning in supervised multi-modal learning", ICML 2023). Its own classifier keeps it learning.

Shapes: B batch, D width of one embedding, P width of all together, C outputs; a head of M members answers [B, M, C].
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from vfl.models.mlp import MemberHeads, has_placeholders


class AuxiliaryHead(nn.Module):
    """A head that keeps a classifier for each party: embeddings [B, P] -> the head's answer, [B, C] or [B, M, C].

    NaN marks a missing embedding. Raises ValueError for a width that the members do not divide.
    """

    def __init__(self, joint: nn.Module, widths: Sequence[int], outputs: int, members: int = 1) -> None:
        """Take the head, the widths D of the embeddings in its order, and the number of its outputs C."""
        super().__init__()
        if any(width % members for width in widths):
            raise ValueError(f"widths: {list(widths)} are not multiples of {members} members")
        self.joint = joint
        self.widths = list(widths)
        self.outputs = outputs
        self.averages = False
        """The answer is the classifiers' mean: the parties have only trained alone so far."""
        own = [[nn.Linear(width // members, outputs) for _ in range(members)] for width in widths]
        self.classifiers = nn.ModuleList(
            each[0] if members == 1 else MemberHeads(each, [width]) for each, width in zip(own, widths, strict=True)
        )
        self._fills = not has_placeholders(joint)

    def forward(self, representation: Tensor) -> Tensor:
        """Return the answer to the embeddings [B, P]; a head without placeholders reads missing ones as 0."""
        if self.averages:
            return self.mean_answer(representation)
        return self.joint(torch.nan_to_num(representation) if self._fills else representation)

    def mean_answer(self, representation: Tensor) -> Tensor:
        """Return the mean of the present parties' own answers: of log-probabilities, or of amounts."""
        answers, presence = zip(*self.own_answers(representation), strict=True)
        stacked = torch.stack(answers)  # [K, B, C] or [K, B, M, C]
        if self.outputs > 1:
            stacked = stacked.log_softmax(dim=-1)
        present_KB = torch.stack(presence)
        shape = (*present_KB.shape, *[1] * (stacked.dim() - 2))
        counts_B = present_KB.sum(dim=0).clamp(min=1).reshape(shape[1:])
        return torch.where(present_KB.reshape(shape), stacked, 0.0).sum(dim=0) / counts_B

    def own_answers(self, representation: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each party's own answer, as the head's, and bool [B], True where its embedding is there."""
        answers: list[tuple[Tensor, Tensor]] = []
        for classifier, part_BD in zip(self.classifiers, torch.split(representation, self.widths, dim=1), strict=True):
            missing_B1 = part_BD[:, :1].isnan()
            # Not a product with a mask: NaN times 0 is NaN. The gradient at what is missing is 0.
            answers.append((classifier(torch.where(missing_B1, 0.0, part_BD)), ~missing_B1[:, 0]))
        return answers


class OwnWhereMissing(nn.Module):
    """A head whose answer is the mean of the present parties' own in rows where an embedding is missing."""

    def __init__(self, head: AuxiliaryHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, representation: Tensor) -> Tensor:
        """Return the answer to the embeddings [B, P]."""
        answer, own = self.head(representation), self.head.mean_answer(representation)
        missing_B = representation.isnan().any(dim=1)
        return torch.where(missing_B.reshape(-1, *[1] * (answer.dim() - 1)), own, answer)


JOINT = "joint."
"""Prefix of the names of the head's own weights."""


def split_weights(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights of a head by its own names, and those of its classifiers, if it has any."""
    joint = {name.removeprefix(JOINT): each for name, each in weights.items() if name.startswith(JOINT)}
    classifiers = {name: each for name, each in weights.items() if name.startswith("classifiers.")}
    return (joint, classifiers) if joint else (dict(weights), {})


def join_weights(joint: Mapping[str, Tensor], classifiers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of an `AuxiliaryHead`; the inverse of `split_weights`."""
    return {f"{JOINT}{name}": each for name, each in joint.items()} | dict(classifiers)


def has_classifiers(head: nn.Module) -> bool:
    """Return whether a head keeps a classifier for each party."""
    return any(isinstance(module, AuxiliaryHead) for module in head.modules())
