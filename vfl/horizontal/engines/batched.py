"""The batched engine: the clients of a cohort stacked, one pass and one update for all of them.

It computes what the sequential engine does, up to rounding. What it saves is the cost of starting kernels, which
is most of the time of small models and batches.

Shapes: K clients at work, S steps of the longest, B rows of the largest batch; P and Q as in ``flat.py``.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vfl.base.errors import one_line
from vfl.base.random import seeded
from vfl.config import ConfigError, OptimizerConfig
from vfl.horizontal.engines.sequential import LocalEngine
from vfl.horizontal.engines.stacked import refusal, stack_model
from vfl.horizontal.flat import FlatModel
from vfl.horizontal.local import LocalResult, LocalTask, Loss, batch_loss

STACK_BYTES = {"cpu": 2**26, "cuda": 2**31}
"""Bytes of the weights that are stacked at a time, by device; larger cohorts are cut. On the CPU a stack larger than
the cache is slower than none."""

KNOWN = ("torch.nn.modules.", "vfl.")
"""Beginnings of the modules whose classes need no comparison: PyTorch's layers, and models with tests of their own."""
COMPARED = (4, 3)
"""Rows of the two clients whose pass is compared with the module's own."""
ALIKE = 1e-6
"""Largest distance of a client's gradient from the module's own, as a share of its length; rounding stays below."""


@dataclass(eq=False)
class BatchedEngine(LocalEngine):
    """Trains clients together; the model's values are neither used nor changed.

    Raises ConfigError for a model that cannot be stacked (``stacked.py``), or another precision than float32.
    """

    def __post_init__(self) -> None:
        if self.runtime.autocast_dtype is not None:
            raise ConfigError("horizontal.engine: batched computes in float32; set precision=float32 or use sequential")
        self.losses = _cross_entropies if self.loss is batch_loss else _client_by_client(self.loss)
        self.module, self.stack = stack_model(self.model)
        self.gradients_KP = self.model.weights_P.new_zeros(0, len(self.model.weights_P))
        self._compare_with_module()

    def _compare_with_module(self) -> None:
        """Raise ConfigError unless a pass of two clients gives the module's own gradients and draws nothing.

        What a module's code does with its layers, or draws by a function, does not follow from their types. In double
        precision, so that no rounding on any device is taken for a difference.
        """
        if all(type(each).__module__.startswith(KNOWN) for each in self.model.module.modules()):
            return
        twin = copy.copy(self)
        twin.model = FlatModel(copy.deepcopy(self.model.module).double().train())
        twin.features = self.features[: max(COMPARED)]
        twin.features = twin.features.double() if twin.features.is_floating_point() else twin.features
        twin.module, twin.stack = stack_model(twin.model)
        twin.gradients_KP = self.gradients_KP.double()
        rows = [torch.arange(count, device=twin.features.device) % len(twin.features) for count in COMPARED]
        with seeded(0, "comparison of engines") as has_drawn:
            before = _device_stream(self.features)
            try:
                expected_KP = [twin._own_gradient(rows_B) for rows_B in rows]
            except (RuntimeError, ValueError):  # as of BatchNorm over one value: the training itself will warn
                return
            if has_drawn() or not torch.equal(before, _device_stream(self.features)):
                raise refusal("its code draws random numbers")
        start_P, statistics_Q = twin.model.weights_P, twin.model.statistics_Q
        tasks = [LocalTask(k, rows_B, start_P, statistics_Q, [rows_B], 1.0) for k, rows_B in enumerate(rows)]
        work = _Work(tasks, self.optimizer, twin._gradient_rows(len(tasks)))
        twin._place(work, len(tasks))
        try:
            twin._gradients(rows, COMPARED)
        except (AttributeError, TypeError, RuntimeError, ValueError) as error:
            raise refusal(f"its code asks more of a layer than one input's output ({one_line(error)})") from None
        for expected_P, found_P in zip(expected_KP, work.gradients_KP, strict=True):
            found_P = torch.cat([each.flatten() for each in twin.model.split(found_P)])
            if not (found_P - expected_P).square().sum() <= ALIKE**2 * expected_P.square().sum():
                raise refusal("its code does not treat samples independently, or uses a layer in another way")

    def _own_gradient(self, rows_B: Tensor) -> Tensor:
        """Return the gradient of one batch as the module computes it, one vector of all parameters."""
        loss = self.loss(self.model.module(self.features[rows_B]), self.labels[rows_B])
        gradients = torch.autograd.grad(loss, self.model.parameters, materialize_grads=True)
        return torch.cat([each.flatten() for each in gradients])

    def train(self, tasks: Sequence[LocalTask]) -> list[LocalResult]:
        """Train the clients in stacks of similar work, those with most steps first."""
        size = max(1, STACK_BYTES[self.features.device.type] // max(1, self.model.weights_P.nbytes))
        # Stable: tasks of equal length keep their order, so that every run forms the same stacks.
        order = sorted(range(len(tasks)), key=lambda place: -len(tasks[place].batches))
        results: dict[int, LocalResult] = {}
        self.model.module.train()
        for start in range(0, len(order), size):
            places = order[start : start + size]
            results |= zip(places, self._train([tasks[place] for place in places]), strict=True)
            self.on_client(len(results), len(tasks))
        return [results[place] for place in range(len(tasks))]

    def _train(self, tasks: Sequence[LocalTask]) -> list[LocalResult]:
        """Train one stack; ``tasks`` are sorted by falling numbers of steps, so those still at work come first."""
        # First, because the steps below use the same memory for gradients.
        full_gradients = self._full_gradients(
            {k: task for k, task in enumerate(tasks) if task.full_gradient == "start"}
        )
        work = _Work(tasks, self.optimizer, self._gradient_rows(len(tasks)))
        counts = [[len(rows_B) for rows_B in task.batches] for task in tasks]
        norms_wanted = any(task.gradient_norms for task in tasks)
        losses_SK: list[Tensor] = []
        squared_norms_SK: list[Tensor] = []
        active = 0
        for step in range(len(counts[0])):
            # Views of the rows at work: made anew only where somebody has ended.
            if active != (active := sum(len(steps) > step for steps in counts)):
                self._place(work, active)
            batches = [task.batches[step] for task in tasks[:active]]
            losses_SK.append(self._gradients(batches, [steps[step] for steps in counts[:active]]))
            if norms_wanted:  # before the update, which adds shift, pull and momentum to the gradients in place
                squared_norms_SK.append(work.gradients_KP[:active].square().sum(dim=1))
            work.update(active)
        # Before the weights become differences, in place.
        ended = {
            place: replace(task, start_P=work.weights_KP[place].clone())
            for place, task in enumerate(tasks)
            if task.full_gradient == "end"
        }
        deltas = work.weights_KP.sub_(work.starts_KP).unbind()
        # The memory for gradients is free again: the results are views of other matrices.
        statistics = work.statistics_KQ.unbind()
        full_gradients |= self._full_gradients(ended)
        losses, squared_norms = _by_client(losses_SK, counts), _by_client(squared_norms_SK, counts)
        return [
            task.result(
                deltas[place],
                statistics[place],
                losses[place].mean(),
                full_gradients.get(place),
                squared_norms[place] if task.gradient_norms else None,
            )
            for place, task in enumerate(tasks)
        ]

    def _gradient_rows(self, clients: int) -> Tensor:
        """Return a matrix [K, P] for gradients, in the same memory every time: fresh pages cost as much as a step."""
        if len(self.gradients_KP) < clients:
            self.gradients_KP = self.gradients_KP.new_zeros(clients, len(self.model.weights_P))
        return self.gradients_KP[:clients]

    def _place(self, work: "_Work", active: int) -> None:
        """Point the stacked layers to the first rows of a stack's matrices."""
        weights = self.model.split(work.weights_KP[:active])
        # Views that autograd knows as leaves: an update of the matrix in place moves them, without a copy.
        self.stack.weights = [weight.detach().requires_grad_() for weight in weights]
        self.stack.gradients = self.model.split(work.gradients_KP[:active])
        self.stack.statistics = self.model.split_statistics(work.statistics_KQ[:active])

    def _gradients(self, batches: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
        """Write the gradients of one batch per client to their places and return the losses [K]."""
        self.stack.counts = counts
        self.stack.called.clear()
        rows_KB = _filled_up(batches, counts)
        outputs = self.module(self.features[rows_KB].flatten(0, 1))
        losses_K = self.losses(outputs, self.labels[rows_KB], counts)
        # Clients are independent: the gradient of the sum is every client's own. A parameter that takes no part in the
        # loss has zeros, not the gradient of an earlier step, which is still in its place.
        gradients = torch.autograd.grad(losses_K.sum(), self.stack.weights, materialize_grads=True)
        for place, gradient in zip(self.stack.gradients, gradients, strict=True):
            place.copy_(gradient)  # nothing to do where it was computed there
        return losses_K.detach()

    def _full_gradients(self, tasks: Mapping[int, LocalTask]) -> dict[int, Tensor]:
        """Return the gradients over all rows at the starts of some tasks, by the same keys."""
        if not tasks:
            return {}
        work = _Work(list(tasks.values()), self.optimizer, self._gradient_rows(len(tasks)))
        self._place(work, len(tasks))
        rows = [task.rows_N for task in tasks.values()]
        self._gradients(rows, [len(rows_N) for rows_N in rows])
        # Clients keep theirs, and not the others'.
        return {place: work.gradients_KP[row].clone() for row, place in enumerate(tasks)}


def _device_stream(values: Tensor) -> Tensor:
    """Return the state of the generator of an accelerator on which the values are; nothing on the CPU."""
    return torch.cuda.get_rng_state(values.device) if values.device.type == "cuda" else torch.empty(0)


class _Work:
    """The matrices of a stack, one row per client, and SGD on them: the rule of ``torch.optim.SGD``."""

    def __init__(self, tasks: Sequence[LocalTask], optimizer: OptimizerConfig, gradients_KP: Tensor) -> None:
        self.optimizer = optimizer
        self.gradients_KP = gradients_KP
        self.starts_KP = _rows([task.start_P for task in tasks])
        # An expanded row has stride 0: its clone must be a real matrix, as rows are changed in place.
        self.weights_KP = self.starts_KP.clone(memory_format=torch.contiguous_format)
        self.statistics_KQ = torch.stack([task.statistics_Q for task in tasks])
        self.momentum_KP = torch.zeros_like(self.weights_KP) if optimizer.momentum else None
        column = self.weights_KP.new_tensor([[-task.learning_rate, task.pull] for task in tasks])
        self.negative_rates_K1, self.pulls_K1 = column[:, :1], column[:, 1:]
        self.pulled = any(task.pull for task in tasks)
        self.shifts_KP = _shifts(tasks)

    def update(self, active: int) -> None:
        """Take one step with the first ``active`` rows of the gradients."""
        weights_KP, direction_KP = self.weights_KP[:active], self.gradients_KP[:active]
        if self.shifts_KP is not None:
            direction_KP.add_(self.shifts_KP[:active])
        if self.pulled:
            direction_KP.addcmul_(weights_KP - self.starts_KP[:active], self.pulls_K1[:active])
        # From here on torch.optim.SGD's order: decay, momentum, step. Shift and pull are part of the gradient for it.
        if self.optimizer.weight_decay:
            direction_KP.add_(weights_KP, alpha=self.optimizer.weight_decay)
        if self.momentum_KP is not None:
            momentum_KP = self.momentum_KP[:active].mul_(self.optimizer.momentum).add_(direction_KP)
            nesterov = self.optimizer.nesterov
            direction_KP = direction_KP.add_(momentum_KP, alpha=self.optimizer.momentum) if nesterov else momentum_KP
        weights_KP.addcmul_(direction_KP, self.negative_rates_K1[:active])


def _rows(vectors: Sequence[Tensor]) -> Tensor:
    """Return vectors [P] as [K, P], without a copy if all are the same tensor, as at the start of a round."""
    if all(vector is vectors[0] for vector in vectors):
        return vectors[0].expand(len(vectors), -1)
    return torch.stack(list(vectors))


def _shifts(tasks: Sequence[LocalTask]) -> Tensor | None:
    if all(task.shift_P is None for task in tasks):
        return None
    return torch.stack([torch.zeros_like(task.start_P) if task.shift_P is None else task.shift_P for task in tasks])


def _filled_up(batches: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Return the batches as int64 [K, B], short ones padded with their last row."""
    longest = max(counts)
    # Any valid row will do: no loss and no statistic counts what fills up.
    if min(counts) < longest:
        batches = [
            torch.cat([rows_B, rows_B[-1:].expand(longest - count)])
            for rows_B, count in zip(batches, counts, strict=True)
        ]
    return torch.stack(list(batches))


def _by_client(values_SK: Sequence[Tensor], counts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return every client's values for its own steps; later steps have fewer clients, always the first ones."""
    if not values_SK:
        return []
    matrix_KS = pad_sequence(list(values_SK))
    return [values_S[: len(steps)] for values_S, steps in zip(matrix_KS, counts, strict=True)]


Losses = Callable[[Tensor, Tensor, Sequence[int]], Tensor]
"""(outputs [K * B, ...], labels [K, B, ...], samples [K] that are not padding) -> mean losses [K]."""


def _cross_entropies(outputs: Tensor, labels_KB: Tensor, counts: Sequence[int]) -> Tensor:
    """Return ``batch_loss`` of every client."""
    clients, size = labels_KB.shape[:2]
    # T positions of a label, all of the same weight; 1 where a label is a class.
    losses_KBT = F.cross_entropy(outputs, labels_KB.flatten(0, 1), reduction="none").reshape(clients, size, -1)
    if min(counts) == size:
        return losses_KBT.mean(dim=(1, 2))
    counts_K1 = torch.tensor(counts, dtype=outputs.dtype, device=outputs.device)[:, None]
    shares_KB = (torch.arange(size, device=outputs.device) < counts_K1) / counts_K1
    return (losses_KBT.mean(dim=2) * shares_KB).sum(dim=1)


def _client_by_client(loss: Loss) -> Losses:
    """Return a function of stacked batches that applies any loss of one batch to each client."""

    def losses(outputs: Tensor, labels_KB: Tensor, counts: Sequence[int]) -> Tensor:
        outputs_KB = outputs.reshape(*labels_KB.shape[:2], *outputs.shape[1:])
        return torch.stack(
            [loss(outputs_KB[client, :count], labels_KB[client, :count]) for client, count in enumerate(counts)]
        )

    return losses
