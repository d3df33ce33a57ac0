"""The head server: holds the labels and the head model, and drives the parties round by round.

Shapes: B batch, D width of one embedding, P width of all embeddings together.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vfl.checkpoint import State
from vfl.config import ExperimentConfig
from vfl.costs import EVALUATION, Direction, PartyCosts, round_metrics, total_costs
from vfl.digest import check_same_data, combined_digest, weights_digest
from vfl.lightweighting.schedule import schedule_of, value_at
from vfl.loop import Metrics, finite
from vfl.vertical.batches import batch_rows, steps_in_round
from vfl.vertical.embeddings import EmbeddingReceiver
from vfl.vertical.head import HeadTrainer
from vfl.vertical.labels import ServerProtocol
from vfl.vertical.link import PartyLink
from vfl.wire.codec import dense_frame_size, frame_info
from vfl.wire.messages import Buffer, Kind, Message, MessageError, PartKind, control, unpack

OWNER = "server"
"""The server's name among the owners of state and weights."""
MEASURING = (Kind.EVALUATE, Kind.EVALUATION, Kind.MEAN, Kind.DESCRIBE, Kind.DESCRIPTION)
"""Messages that look at the model and do not train it."""
PRESENT = ("alpha", "beta", "parameters", "macs_per_sample")
"""What a party is now, by its last report."""
REPORTED = (*PRESENT, "train_macs", "unpruned_train_macs", "omega", "psi")
"""Numbers of a party's report."""


class HeadServer:
    """LVFL (Algorithm 1) as the server runs it: an ``Algorithm`` of the training loop.

    Args:
        links: ways to the parties, in the order in which their embeddings are concatenated.
        receivers: decode each party's embeddings, in the same order.
        trainer: the head model.
        protocol: the server's side of the label protocol.
        train_labels_N: labels of the training samples.
        test_labels_N: labels of the test samples.
        config: the experiment.
        on_exchange: called with (exchanges done, exchanges of the round).
    """

    def __init__(
        self,
        links: Sequence[PartyLink],
        receivers: Sequence[EmbeddingReceiver],
        trainer: HeadTrainer,
        protocol: ServerProtocol,
        train_labels_N: Tensor,
        test_labels_N: Tensor,
        config: ExperimentConfig,
        on_exchange: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.links = links
        self.receivers = receivers
        self.trainer = trainer
        self.protocol = protocol
        self.train_labels_N = train_labels_N.to(trainer.runtime.device)
        self.test_labels_N = test_labels_N.to(trainer.runtime.device)
        self.config = config
        self.on_exchange = on_exchange
        self.steps = steps_in_round(config.training.steps_per_round, len(train_labels_N), config.training.batch_size)
        self.costs = {link.name: PartyCosts() for link in links}
        self.reports: dict[str, dict[str, Any]] = {}
        self.ratio_sums = {"alpha": 0.0, "beta": 0.0}

    def train_round(self, round_index: int) -> Metrics:
        """Assign the ratios, run the round's exchanges, collect the parties' reports."""
        costs_before = deepcopy(self.costs)
        self._start_round(round_index)
        batches = batch_rows(
            self.config.seed, round_index, self.steps, len(self.train_labels_N), self.config.training.batch_size
        )
        losses: list[Tensor] = []
        for exchange, rows_B in enumerate(batches):
            losses.append(self.exchange(round_index, exchange, rows_B))
            self.on_exchange(exchange + 1, self.steps)
        self._end_round(round_index)
        metrics = {"loss/train": finite(float(torch.stack(losses).mean()), "the training loss")}
        return metrics | self._report_metrics() | round_metrics(costs_before, self.costs)

    def exchange(self, round_index: int, exchange: int, rows_B: Tensor) -> Tensor:
        """Run one exchange (lines 3-18) and return the loss at its start."""
        device = self.trainer.runtime.device
        frames: list[Buffer] = []
        embeddings: list[Tensor] = []
        # One at a time: what is here is decoded while the other parties still compute.
        replies = self._ask_all(Message(Kind.EMBED, round_index, exchange))
        for receiver, reply in zip(self.receivers, replies, strict=True):
            frames.append(self._frame(receiver.sender, reply))
            embeddings.append(receiver.receive(frames[-1], rows_B).to(device))
        labels_B = self.train_labels_N[rows_B.to(device)]
        updates, losses = self.protocol.begin(self.trainer, frames, embeddings, labels_B)
        done = [
            self._send(link, Message(Kind.UPDATE, round_index, exchange, parts))
            for link, parts in zip(self.links, updates, strict=True)
        ]
        losses += self.trainer.steps(embeddings, labels_B, self.config.training.local_iterations - len(losses))
        self._await_done(done)
        return losses[0]

    def evaluate(self) -> Metrics:
        """Return accuracy and mean loss of the joint model on all test samples, parties in evaluation mode."""
        samples = len(self.test_labels_N)
        correct, loss_sum = 0, 0.0
        for start, stop in self.test_batches():
            logits_BC = self.logits(self.test_embeddings(start, stop, self.links))
            labels_B = self.test_labels_N[start:stop]
            loss_sum += float(F.cross_entropy(logits_BC, labels_B, reduction="sum"))
            correct += int((logits_BC.argmax(dim=1) == labels_B).sum())
        return {"accuracy/test": correct / samples, "loss/test": finite(loss_sum / samples, "the test loss")}

    def test_batches(self) -> list[tuple[int, int]]:
        """Return first row and end of the batches in which the test samples are evaluated."""
        samples, size = len(self.test_labels_N), self.config.evaluation.batch_size
        return [(start, min(start + size, samples)) for start in range(0, samples, size)]

    def test_embeddings(self, start: int, stop: int, links: Sequence[PartyLink]) -> dict[str, Tensor]:
        """Ask parties for their embeddings [B, D] of the test samples ``start`` to ``stop``; return them by name."""
        message = Message(Kind.EVALUATE, parts=(control({"start": start, "stop": stop}),))
        return self._embeddings(message, stop - start, links)

    def mean_embeddings(self, links: Sequence[PartyLink]) -> dict[str, Tensor]:
        """Ask parties for the mean [D] of their embeddings of all training samples; return them by name."""
        means = self._embeddings(Message(Kind.MEAN), 1, links)
        return {name: mean_1D[0] for name, mean_1D in means.items()}

    def logits(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Return the head's scores [B, C] of all parties' embeddings [B, D]."""
        representation_BP = torch.cat([embeddings[link.name] for link in self.links], dim=1)
        with torch.inference_mode():
            return self.trainer.runtime.forward(self.trainer.head, representation_BP.to(self.trainer.runtime.device))

    def summary(self) -> dict[str, Any]:
        """Return the totals of all rounds, and per party what it is now and what it cost."""
        digests = {OWNER: weights_digest(self.trainer.head.state_dict())}
        digests |= {name: str(described["weights_digest"]) for name, described in self.describe().items()}
        parties = {
            name: {
                **{key: self.reports.get(name, {}).get(key) for key in PRESENT},
                "uplink_bytes": costs.training_bytes("uplink"),
                "downlink_bytes": costs.training_bytes("downlink"),
                "train_time_s": costs.train_time_s,
                "bytes_by_kind": {"uplink": dict(costs.uplink_bytes), "downlink": dict(costs.downlink_bytes)},
            }
            for name, costs in self.costs.items()
        }
        return {**total_costs(self.costs), "model_digest": combined_digest(digests), "parties": parties}

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return, by party, the digest of its weights and the widths of its prunable layers, now and as built."""
        replies = self._ask_all(Message(Kind.DESCRIBE))
        return {link.name: reply.settings for link, reply in zip(self.links, replies, strict=True)}

    def state_dict(self) -> dict[str, State]:
        """Return the server's state, and what the links keep of their parties."""
        own: State = {
            "head": self.trainer.state_dict(),
            "feedback": {receiver.sender: receiver.state_dict() for receiver in self.receivers},
            "costs": {name: asdict(costs) for name, costs in self.costs.items()},
            "reports": self.reports,
            "ratio_sums": self.ratio_sums,
            "data_digest": self._data_digest,
        }
        saving = {link.name: link.save() for link in self.links}  # all at once
        return {OWNER: own} | {name: state.result() for name, state in saving.items()}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue from a state."""
        own = state[OWNER]
        check_same_data("the labels", own["data_digest"], self._data_digest)
        self.trainer.load_state_dict(own["head"])
        for receiver in self.receivers:
            receiver.load_state_dict(own["feedback"][receiver.sender])
        self.costs = {name: PartyCosts(**costs) for name, costs in own["costs"].items()}
        self.reports = own["reports"]
        self.ratio_sums = own["ratio_sums"]
        for loading in [link.load(state[link.name]) for link in self.links]:
            loading.result()

    def close(self) -> None:
        """Release the parties."""
        for link in self.links:
            link.close()

    @cached_property
    def _data_digest(self) -> str:
        return weights_digest({"train": self.train_labels_N, "test": self.test_labels_N})

    def _start_round(self, round_index: int) -> None:
        self.trainer.start_round(round_index)
        parts, settings = self.protocol.start_round(self.trainer)
        ratios = self.config.lightweighting
        pending: list[Future[Buffer]] = []
        for link in self.links:
            assigned = {
                "alpha": value_at(schedule_of(ratios.alpha, link.name), round_index),
                "beta": value_at(schedule_of(ratios.beta, link.name), round_index),
            }
            message = Message(Kind.START_ROUND, round_index, parts=(control(assigned | settings), *parts))
            pending.append(self._send(link, message))
        self._await_done(pending)

    def _end_round(self, round_index: int) -> None:
        for link, reply in zip(self.links, self._ask_all(Message(Kind.END_ROUND, round_index)), strict=True):
            report = _checked_report(link.name, reply.settings)
            self.reports[link.name] = report
            costs = self.costs[link.name]
            costs.train_macs += report["train_macs"]
            costs.unpruned_train_macs += report["unpruned_train_macs"]
            costs.train_time_s += float(report["train_time_s"])
            for ratio in self.ratio_sums:
                self.ratio_sums[ratio] += report[ratio]

    def _report_metrics(self) -> Metrics:
        tags = ("alpha", "beta", "macs_per_sample", "parameters", "omega", "psi", "head_drift")
        metrics = {
            f"{tag}/{name}": float(report[tag])
            for tag in tags
            for name, report in self.reports.items()
            if tag in report
        }
        # Corollary 1: the convergence bound grows with both sums over rounds and parties.
        return metrics | {f"corollary1/sum_{ratio}": total for ratio, total in self.ratio_sums.items()}

    def _embeddings(self, message: Message, rows: int, links: Sequence[PartyLink]) -> dict[str, Tensor]:
        """Send one message that is answered by embeddings [rows, D]; return them by party."""
        replies = self._replies([self._send(link, message) for link in links], Kind.EVALUATION, links)
        receivers = {receiver.sender: receiver for receiver in self.receivers}
        return {
            link.name: receivers[link.name].decode(self._frame(link.name, reply), rows)
            for link, reply in zip(links, replies, strict=True)
        }

    def _ask_all(self, message: Message) -> Iterator[Message]:
        """Send one message to all parties; their replies follow as they come, in the parties' order."""
        return self._replies([self._send(link, message) for link in self.links], _ANSWERS[message.kind], self.links)

    def _send(self, link: PartyLink, message: Message) -> Future[Buffer]:
        reply = link.send(message)
        if not link.absent:
            self._book(link.name, "downlink", message)
        return reply

    def _replies(
        self, pending: Sequence[Future[Buffer]], expected: Kind, links: Sequence[PartyLink]
    ) -> Iterator[Message]:
        for link, future in zip(links, pending, strict=True):
            reply = unpack(future.result())
            if reply.kind != expected:
                raise MessageError(f"{link.name} answered {reply.kind.name} instead of {expected.name}")
            if not link.absent:
                self._book(link.name, "uplink", reply)
            yield reply

    def _await_done(self, pending: Sequence[Future[Buffer]]) -> None:
        for _ in self._replies(pending, Kind.DONE, self.links):
            pass

    def _book(self, name: str, direction: Direction, message: Message) -> None:
        costs = self.costs[name]
        measuring = message.kind in MEASURING
        for part in message.parts:
            kind = EVALUATION if measuring else part.kind.name.lower()
            dense = part.size
            if part.kind == PartKind.EMBEDDING:
                info = frame_info(part.payload)
                dense += dense_frame_size(info.shape, info.values) - len(part.payload)
            costs.book_bytes(direction, kind, part.size, dense)
        envelope = message.size - sum(part.size for part in message.parts)
        costs.book_bytes(direction, EVALUATION if measuring else "control", envelope, envelope)

    def _frame(self, sender: str, reply: Message) -> Buffer:
        frames = reply.payloads(PartKind.EMBEDDING)
        if len(frames) != 1:
            raise MessageError(f"{sender}: {reply.kind.name} with {len(frames)} embeddings instead of 1")
        return frames[0]


def _checked_report(party: str, report: dict[str, Any]) -> dict[str, Any]:
    """Return a party's report as it came. Raises MessageError where a number is missing or none."""
    for key in REPORTED:
        value = report.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise MessageError(f"{party}: its report has {key} = {value!r} instead of a number")
    try:
        elapsed_s = float(report.get("train_time_s", ""))
    except (TypeError, ValueError):
        elapsed_s = math.nan
    if not math.isfinite(elapsed_s):
        raise MessageError(f"{party}: its report has train_time_s = {report.get('train_time_s')!r}")
    return report


_ANSWERS = {
    Kind.EMBED: Kind.EMBEDDING,
    Kind.UPDATE: Kind.DONE,
    Kind.END_ROUND: Kind.REPORT,
    Kind.DESCRIBE: Kind.DESCRIPTION,
}
