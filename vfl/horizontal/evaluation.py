"""The test of the global model. Weights, statistics and random streams of the training stay unchanged."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vfl.horizontal.flat import FlatModel
from vfl.runs.loop import Metrics, finite
from vfl.runs.runtime import Runtime


@dataclass(eq=False)
class Evaluator:
    """Accuracy and loss on the test samples."""

    model: FlatModel
    """Model to evaluate with; it is overwritten."""
    features: Tensor
    """[M, ...] test samples, on the runtime's device."""
    labels: Tensor
    """[M], or [M, T] if every position counts."""
    batch_size: int
    """Samples per forward pass."""
    runtime: Runtime
    running_statistics: bool
    """Use BatchNorm's running statistics; False normalises by the test batch."""

    @torch.inference_mode()
    def evaluate(self, weights_P: Tensor, statistics_Q: Tensor) -> Metrics:
        """Return ``accuracy/test`` and ``loss/test``. Raises Diverged if the loss is not finite."""
        self.model.load(weights_P, statistics_Q)
        self.model.module.eval()
        # The layers then also move the model's running statistics, which `load` overwrites before anyone reads them.
        if not self.running_statistics:
            for module in self.model.module.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):  # pyright: ignore[reportPrivateUsage]  # the only common base
                    module.train()
        correct, loss_sum = 0, 0.0
        for start in range(0, len(self.labels), self.batch_size):
            stop = start + self.batch_size
            outputs = self.runtime.forward(self.model.module, self.features[start:stop])
            labels = self.labels[start:stop]
            loss_sum += float(F.cross_entropy(outputs, labels, reduction="sum"))
            correct += int((outputs.argmax(dim=1) == labels).sum())
        loss = finite(loss_sum / self.labels.numel(), "the test loss")
        return {"accuracy/test": correct / self.labels.numel(), "loss/test": loss}
