"""Two sites and a server for split learning in NVFlare, written against its public Collab API.

Site 1 has images, site 2 labels. A site's values come from the recipe: kind of the model, exchanges, file of times.
"""
# pyright: basic, reportMissingImports=false, reportUntypedFunctionDecorator=false
# nvflare is only in the peer's environment.

import json
import time
from pathlib import Path

import numpy as np
import torch
from nvflare.collab import collab
from torch import Tensor, nn

from scripts.lab.peers.split_models import CLASSES, image_half, label_half

ROWS, BATCH, PATIENCE_S = 2496, 64, 600.0


class Server:
    """Asks the owner of the images to train."""

    @collab.main
    def run(self) -> int:
        """Return how many exchanges there were."""
        return collab.get_clients(["site-1"])[0](timeout=PATIENCE_S).train()


class Site:
    """Either owner; values travel as float16."""

    @collab.init
    def start(self) -> None:
        """Draw this site's data and model."""
        torch.set_num_threads(1)
        torch.manual_seed(0)
        kind = collab.get_app_prop("kind")
        if collab.site_name == "site-1":
            self.images, self.model = torch.randn(ROWS, 3, 16, 16), image_half(kind)
        else:
            self.labels, self.model = torch.randint(CLASSES, (ROWS,)), label_half(kind)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.001, momentum=0.9)

    @collab.publish
    def train(self) -> int:
        """Train from the images' side, and write the seconds of each exchange."""
        partner = collab.get_clients(["site-2"])[0]
        stream, seconds = np.random.default_rng(0), []
        for _ in range(collab.get_app_prop("exchanges")):
            began = time.perf_counter()
            rows = stream.integers(0, ROWS, BATCH)
            embedding = self.model(self.images[rows])
            gradient = partner(timeout=PATIENCE_S).answer(rows, embedding.detach().half())
            self.optimizer.zero_grad()
            embedding.backward(gradient.float())
            self.optimizer.step()
            seconds.append(time.perf_counter() - began)
        Path(collab.get_app_prop("times")).write_text(json.dumps(seconds), encoding="utf-8")
        return len(seconds)

    @collab.publish
    def answer(self, rows: np.ndarray, sent: Tensor) -> Tensor:
        """Take a step on the labels' half, and return the gradient at what was sent."""
        embedding = sent.float().requires_grad_()
        loss = nn.functional.cross_entropy(self.model(embedding), self.labels[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        assert embedding.grad is not None
        return embedding.grad.half()
