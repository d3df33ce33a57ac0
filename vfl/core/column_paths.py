"""What each column of an owner's row moved, at the owner: integrated gradients through its own finished model.

The path leads straight from the reference, the means of the numbers and each most frequent category, to the row. On it
a category's learned vector moves from the reference's to the row's. For each step the head returns the score's mean
slope at the embedding. A column gets the sum over its places of (row - reference) times the mean slope there
(Sundararajan, Taly and Yan, "Axiomatic attribution for deep networks", ICML 2017, equation 3, by the midpoint rule).
What that rule misses at the model's kinks is the completeness error. It is spread in proportion to the amounts' sizes,
so that they sum to what the score gained, and a column that the model ignores keeps 0.

Shapes: B rows, S steps, P points, W places of a prepared row, K columns of categories, E width of their vectors, C
columns, D embedding width.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's own signatures are partly untyped.

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

POINTS_A_STEP = 4
"""Points of a step at which the owner looks at its own model's slope, which needs nobody else."""
SMALLEST = 1e-300
"""Against a division by 0 where no column moved anything."""


class ColumnPaths:
    """Paths through one owner's finished model.

    Args:
        model: in evaluation mode; nobody else may use it. Categories travel where an ``nn.Embedding`` of it reads all
            their codes at once; any other reading of codes gets no amount, which the completeness error shows.
        forward: applies a model to its inputs.
        reference_W: a prepared row, the codes of its ``codes`` categories last.
        places: each column's places in a prepared row.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[..., Tensor],
        reference_W: Tensor,
        codes: int,
        places: Sequence[Sequence[int]],
    ) -> None:
        self.model = model.requires_grad_(False)
        self._forward = forward
        self._reference_1W = reference_W[None]
        self._codes = codes
        self._columns = len(places)
        pairs = [(place, column) for column, own in enumerate(places) for place in own]
        self._places, self._column_of = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(dim=1)
        self._categories = [module for module in model.modules() if codes and isinstance(module, nn.Embedding)]
        with torch.no_grad():
            self._reference_vectors, self._reference_1D = self._vectors(self._reference_1W)

    def embed(self, rows_BW: Tensor, steps: int) -> Tensor:
        """Return the embeddings [1 + B S, D] of the reference, then of each row's path at the end of each step."""
        with torch.no_grad():
            path_BP, _ = self._walk(rows_BW, torch.arange(1, steps + 1) / steps)
            return torch.cat([self._reference_1D, path_BP]).cpu()

    def moved(self, rows_BW: Tensor, slope_BSD: Tensor, gained_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each column moved [B, C], and the completeness errors [B], float64.

        Args:
            rows_BW: prepared rows.
            slope_BSD: the score's mean slope at the embedding on each step of a row's path.
            gained_B: float64, the score minus the score with the reference, to which a row's amounts sum.
        """
        rows, steps, _ = slope_BSD.shape
        points = steps * POINTS_A_STEP
        slope_BPD = slope_BSD.repeat_interleave(POINTS_A_STEP, dim=1)
        with torch.enable_grad():
            path_BP, ends = self._walk(rows_BW, (torch.arange(points) + 0.5) / points)
            inputs = [start for start, _ in ends]
            gradients = torch.autograd.grad(
                path_BP, inputs, slope_BPD.flatten(0, 1).to(path_BP), allow_unused=True, materialize_grads=True
            )
        moved_BW = torch.zeros(rows_BW.shape, dtype=torch.float64)
        for gradient, (start, change) in zip(gradients, ends, strict=True):
            own = gradient.double().view(rows, points, *start.shape[1:]).mean(dim=1) * change.double()
            if own.dim() == 2:
                moved_BW += own.cpu()
            else:  # vectors of categories, [B, K, E]
                moved_BW[:, -self._codes :] += own.sum(dim=2).cpu()
        moved_BC = moved_BW.new_zeros(rows, self._columns)
        moved_BC.index_add_(1, self._column_of, moved_BW[:, self._places])
        error_B, size_BC = moved_BC.sum(dim=1) - gained_B, moved_BC.abs()
        return moved_BC - error_B[:, None] * size_BC / size_BC.sum(dim=1, keepdim=True).clamp(min=SMALLEST), error_B

    def _walk(self, rows_BW: Tensor, shares_P: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the embeddings [B P, D] at shares of the paths.

        And each input's points [B P, ...] with its change [B, ...] on the whole path.
        """
        shares_P = shares_P.to(rows_BW)
        change_BW = rows_BW - self._reference_1W

        def points_of(start: Tensor, change: Tensor) -> Tensor:
            share = shares_P.view(1, -1, *[1] * (change.dim() - 1))
            points = (start[:, None] + share * change[:, None]).flatten(0, 1)
            return points.requires_grad_(torch.is_grad_enabled())

        start_1W = self._reference_1W
        if not self._codes:
            points_BP = points_of(start_1W, change_BW)
            return self._forward(self.model, points_BP), [(points_BP, change_BW)]
        # A code is no number between two others: it stays the row's, and its vector moves.
        start_BW = start_1W.expand_as(rows_BW).clone()
        start_BW[:, -self._codes :] = rows_BW[:, -self._codes :]
        points_BP = points_of(start_BW, rows_BW - start_BW)
        with torch.no_grad():
            after, _ = self._vectors(rows_BW)
        pairs = zip(self._reference_vectors, after, strict=True)
        moving = [(points_of(start, end - start), end - start) for start, end in pairs]
        with self._instead([points for points, _ in moving]):
            path_BP = self._forward(self.model, points_BP)
        return path_BP, [(points_BP, change_BW), *moving]

    def _vectors(self, rows_BW: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the categories' vectors [B, K, E] of rows, one tensor for each time that the model reads them.

        And the rows' embeddings [B, D].
        """
        seen: list[Tensor] = []
        with self._hooked(lambda vectors: seen.append(vectors)):
            return seen, self._forward(self.model, rows_BW)

    @contextmanager
    def _instead(self, vectors: Sequence[Tensor]) -> Generator[None]:
        """Let the model read these vectors."""
        following = iter(vectors)
        with self._hooked(lambda _: next(following)):
            yield

    @contextmanager
    def _hooked(self, change: Callable[[Tensor], Tensor | None]) -> Generator[None]:
        def hook(module: nn.Module, codes: tuple[Tensor, ...], vectors: Tensor) -> Tensor | None:
            return change(vectors) if vectors.dim() == 3 and vectors.shape[1] == self._codes else None

        hooks = [module.register_forward_hook(hook) for module in self._categories]
        try:
            yield
        finally:
            for each in hooks:
                each.remove()


def signed_ranks(moved_BC: Tensor) -> Tensor:
    """Return the columns' places [B, C]: -1 for the one that lowered the score most, 1 for the one that raised it most.

    -2 and 2 for the next, and so on; 0 for a column that moved nothing.
    """
    raised_BC = torch.zeros_like(moved_BC)
    for sign in (1, -1):
        size_BC = (sign * moved_BC).clamp(min=0)
        place_BC = size_BC.argsort(dim=1, descending=True, stable=True).argsort(dim=1) + 1
        raised_BC += torch.where(size_BC > 0, sign * place_BC, 0)
    return raised_BC
