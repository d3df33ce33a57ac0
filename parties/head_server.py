"""The head server: holds the labels and the head model, and drives the parties round by round.

Shapes: B batch, N training samples, D width of one embedding.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from parties.exchanges import Exchanges, take_nothing
from parties.joint_model import JointModel
from vfl.checkpoint import State
from vfl.config import ExperimentConfig
from vfl.costs import Direction, PartyCosts, round_metrics, total_costs
from vfl.data.files import Labels
from vfl.digest import check_same_data, combined_digest, weights_digest
from vfl.lightweighting.controllers import Given, build_controller
from vfl.lightweighting.forecast import Forecast, Work
from vfl.lightweighting.schedule import Ratios
from vfl.loop import Metrics, finite
from vfl.tasks import task_state
from vfl.vertical.booking import book
from vfl.vertical.clock import Clock, Worked, cost_since
from vfl.vertical.decisions import decision_metrics, tell_unmet
from vfl.vertical.embeddings import EmbeddingReceiver
from vfl.vertical.head import HeadTrainer
from vfl.vertical.labels import ServerProtocol
from vfl.vertical.link import PartyLink
from vfl.vertical.presence import Presence
from vfl.vertical.prices import build_forecast, scheduled_alphas
from vfl.vertical.reports import RoundWork, check_report
from vfl.vertical.subsets import AND, subsets_of
from vfl.wire.control import AskedRatios, Description, EvaluatedModel, Prices, Report, RoundStart
from vfl.wire.messages import Kind, Message, check_reply

T = TypeVar("T")

OWNER = "server"
"""The server's name among the owners of state and weights."""
PRESENT = ("alpha", "beta", "parameters", "macs_per_sample")
"""What a party is now, by its last report."""
SHOWN = (*PRESENT, "omega", "psi", "head_drift")
"""The entries of a party's report that are metrics unchanged."""


class HeadServer:
    """LVFL (Algorithm 1) as the server runs it: an ``Algorithm`` of the training loop.

    Args:
        links: ways to the parties, in the order in which their embeddings are concatenated.
        receivers: decode each party's embeddings, in the same order.
        trainer: the head model.
        protocol: the server's side of the label protocol.
        train_labels_N: labels of the training samples.
        test: labels of the test samples, and which parties have a row for them.
        config: the experiment.
        on_exchange: called with (exchanges done, exchanges of the round).
        presence: who takes part in which batch.
    """

    def __init__(
        self,
        links: Sequence[PartyLink],
        receivers: Sequence[EmbeddingReceiver],
        trainer: HeadTrainer,
        protocol: ServerProtocol,
        train_labels_N: Tensor,
        test: Labels,
        config: ExperimentConfig,
        on_exchange: Callable[[int, int], None] = lambda done, total: None,
        *,
        presence: Presence,
    ) -> None:
        self.links = links
        self.receivers = receivers
        self.trainer = trainer
        self.protocol = protocol
        self.config = config
        self.joint = JointModel(links, receivers, trainer, config, test, self._send)
        self.exchanges = Exchanges(self.joint, protocol, train_labels_N, presence, self._report)
        self.on_exchange = on_exchange
        ratios = config.lightweighting
        given = Given(ratios, [link.name for link in links], config.training.rounds, lambda: self.forecast)
        self.assign = build_controller(given)
        """Chooses the ratios of a round, unless another is put in its place."""
        self.recorded: Mapping[int, Mapping[str, Ratios]] = {}
        """Ratios by round that were chosen already, before a resume."""
        self.unmet: list[str] = []
        """Parties of which it is said that they cannot reach the controller's goal."""
        self.prices: dict[str, Prices] = {}
        self.costs = {link.name: PartyCosts() for link in links}
        self.reports: dict[str, Report] = {}
        self.ratios: Mapping[str, Ratios] = {}
        self.assigned: dict[str, RoundStart] = {}
        training = config.training
        steps = self.exchanges.steps
        self.work = Work(steps, training.local_iterations, training.staleness)
        self._round_began_s = 0.0
        self.ratio_sums = {"alpha": 0.0, "beta": 0.0}
        self.clock = Clock(config.simulation, steps, training.staleness)
        self.tested: Metrics | None = None
        """Test of the parties' current models; None if they have changed since."""
        self.subsets: dict[str, Metrics] = {}
        """What each set of parties reached in the last test, by their names."""

    def train_round(self, round_index: int) -> Metrics:
        """Assign the ratios, run the round's exchanges, collect the parties' reports."""
        costs_before = deepcopy(self.costs)
        under_way_s = {link.name: link.under_way_s for link in self.links}
        self.start_round(round_index)
        metrics = self._test_pruning()
        self.tested = None
        for exchange in range(self.exchanges.steps):
            self.exchanges.run(exchange)
            self.on_exchange(exchange + 1, self.exchanges.steps)
        self.end_round()
        metrics["loss/train"] = finite(float(torch.stack(self.exchanges.losses).mean()), "the training loss")
        present = [link for link in self.links if not link.absent]
        worked = {each.name: self._worked(each, costs_before[each.name], under_way_s[each.name]) for each in present}
        metrics |= self.clock.end_round(round_index, worked) | decision_metrics(self.ratios)
        return metrics | self._report_metrics() | round_metrics(costs_before, self.costs)

    def evaluate(self) -> Metrics:
        """Return metrics and mean loss of the joint model on all test samples, parties' models finished.

        With ``evaluation.batch_statistics: both`` also, as ``accuracy/test_running``, with running statistics.
        """
        both = self.config.evaluation.batch_statistics == "both"
        running = self._test("running", "test_running") if both else {}
        self.tested = self._test("finished", "test")
        return running | self.tested

    def _test_pruning(self) -> Metrics:
        """Test just before a pruning, and just after it without a step, where the round begins with one.

        Not in the first round, before which there is nothing to lose.
        """
        present = [link.name for link in self.links if link.name in self.reports and not link.absent]
        if not any(self.assigned[name].alpha > self.reports[name].alpha for name in present):
            return {}
        before = self.tested or self._test("finished", "test")
        named = {tag.replace("/test", "/test_before_pruning"): value for tag, value in before.items()}
        return named | self._test("pruned", "test_after_pruning")

    def _test(self, model: EvaluatedModel, name: str) -> Metrics:
        """Return metrics and mean loss of all test samples under ``name``, each party using one of its models."""
        everyone = tuple(link.name for link in self.links)
        sets = subsets_of(everyone) if self.config.evaluation.subsets and name == "test" else [everyone]
        measured = dict(zip(sets, self.joint.measure(model, sets), strict=True))
        tagged = {f"{metric}/{name}": value for metric, value in measured[everyone].items()}
        if len(sets) == 1:
            return tagged
        self.subsets = {AND.join(names): metrics for names, metrics in measured.items()}
        return tagged | {f"{self.metric}_of/{names}": metrics[self.metric] for names, metrics in self.subsets.items()}

    def summary(self) -> dict[str, Any]:
        """Return the totals of all rounds, and per party what it is now and what it cost."""
        described = self.describe()
        head = {OWNER: weights_digest(self.trainer.head.state_dict())}
        weights = head | {name: each.weights_digest for name, each in described.items()}
        finished = head | {name: each.finished_digest for name, each in described.items()}
        parties = {
            name: {
                **{key: getattr(self.reports.get(name), key, None) for key in PRESENT},
                "uplink_bytes": costs.training_bytes("uplink"),
                "downlink_bytes": costs.training_bytes("downlink"),
                "train_time_s": costs.train_time_s,
                "bytes_by_kind": {"uplink": dict(costs.uplink_bytes), "downlink": dict(costs.downlink_bytes)},
            }
            for name, costs in self.costs.items()
        }
        return {
            **total_costs(self.costs),
            "evaluation_macs": sum(each.evaluation_macs for each in described.values()),
            "model_digest": combined_digest(weights),
            "finished_model_digest": combined_digest(finished),
            "parties": parties,
            **({"subsets": self.subsets} if self.subsets else {}),
        }

    def describe(self) -> dict[str, Description]:
        """Return, by party, the digest of its weights and the widths of its prunable layers, now and as built."""
        described = {link.name: self._send(link, Message(Kind.DESCRIBE), Description.of) for link in self.links}
        return {name: reply() for name, reply in described.items()}

    @cached_property
    def forecast(self) -> Forecast:
        """What exchanges will cost at any ratios; the parties are asked about their models once in a run."""
        alphas = scheduled_alphas(self.config.lightweighting.alpha)
        message = Message(Kind.PRICES, parts=(AskedRatios(alphas=alphas).part(),))
        asked = [link for link in self.links if link.name not in self.prices]
        replies = [self._send(link, message, partial(_priced, alphas)) for link in asked]
        self.prices |= {link.name: reply() for link, reply in zip(asked, replies, strict=True)}
        curves = {link.name: self.prices[link.name].curve(alphas) for link in self.links}
        shares = self.exchanges.presence.mean_shares()
        rows = {
            link.name: self.config.training.batch_size * share for link, share in zip(self.links, shares, strict=True)
        }
        return build_forecast(self.config, self.work, rows, curves, self.receivers, self.trainer)

    def state_dict(self) -> dict[str, State]:
        """Return the server's state, and what the links keep of their parties."""
        own: State = {
            "head": self.trainer.state_dict(),
            "protocol": self.protocol.state_dict(),
            "feedback": {receiver.sender: receiver.state_dict() for receiver in self.receivers},
            "costs": {name: asdict(costs) for name, costs in self.costs.items()},
            "reports": {name: report.model_dump(exclude_none=True) for name, report in self.reports.items()},
            "ratio_sums": self.ratio_sums,
            "tested": self.tested,
            "subsets": self.subsets,
            "clock": self.clock.state_dict(),
            "unmet": self.unmet,
            "prices": {
                name: each.model_dump(mode="json") for name, each in self.prices.items() if max(each.macs_per_sample)
            },
            "data_digest": self._data_digest,
            "task": task_state(self.trainer.task),
            "placeholders": not self.exchanges.presence.whole,
        }
        saving = {link.name: link.save() for link in self.links}  # all at once
        return {OWNER: own} | {name: saved() for name, saved in saving.items()}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue from a state."""
        own = state[OWNER]
        check_same_data("the labels", own["data_digest"], self._data_digest)
        self.load_finished(own)
        self.protocol.load_state_dict(own["protocol"])
        for receiver in self.receivers:
            receiver.load_state_dict(own["feedback"][receiver.sender])
        self.ratio_sums = own["ratio_sums"]
        self.tested, self.unmet = own["tested"], own["unmet"]
        self.subsets = own["subsets"] if self.config.evaluation.subsets else {}
        self.clock.load_state_dict(own["clock"])
        self.prices = {name: Prices.restored(each) for name, each in own["prices"].items()}
        for loading in [link.load(state[link.name]) for link in self.links]:
            loading()

    def load_finished(self, own: State) -> None:
        """Take over the trained head and what the run cost from the server's own state, whatever the data."""
        self.trainer.load_state_dict(own["head"])
        self.costs = {name: PartyCosts(**costs) for name, costs in own["costs"].items()}
        # Checked when they came.
        self.reports = {name: Report.model_construct(**report) for name, report in own["reports"].items()}

    def close(self) -> None:
        """Release the parties."""
        for link in self.links:
            link.close()

    @property
    def metric(self) -> str:
        """The metric by which models are compared."""
        return self.trainer.task.metric

    @cached_property
    def _data_digest(self) -> str:
        test, exchanges = self.joint.samples, self.exchanges
        gaps = {"train_present": exchanges.presence.held_NK, "test_present": test.present}
        there = {name: present for name, present in gaps.items() if present is not None}
        return weights_digest({"train": exchanges.labels_N, "test": test.values, **there})

    def start_round(self, round_index: int) -> None:
        """Assign the round's ratios."""
        self._round_began_s = time.monotonic()
        parts, head_digest = self.exchanges.start_round(round_index)
        # Rates are measured: a round that is repeated after a resume would be given other ratios.
        self.ratios = self.recorded.get(round_index) or self.assign(round_index, self.clock.history)
        self.unmet = tell_unmet(self.ratios, self.unmet)
        told = self.tested if self.config.evaluation.tell_parties else None
        tested = None if told is None else {self.metric: told[f"{self.metric}/test"]}
        self.assigned = {
            name: RoundStart(alpha=ratios.alpha, beta=ratios.beta, head_digest=head_digest, tested=tested)
            for name, ratios in ((link.name, self.ratios.get(link.name, Ratios())) for link in self.links)
        }
        requests = [
            (link, Message(Kind.START_ROUND, round_index, 0, (self.assigned[link.name].part(), *own)))
            for link, own in zip(self.links, parts, strict=True)
        ]
        for started in [self._send(link, request, take_nothing) for link, request in requests]:
            started()

    def end_round(self) -> None:
        """Collect the parties' reports: nothing is under way then."""
        for link, report in zip(self.links, self.exchanges.end_round(), strict=True):
            self.reports[link.name] = report
            costs = self.costs[link.name]
            costs.train_macs += report.train_macs
            costs.unpruned_train_macs += report.unpruned_train_macs
            costs.train_time_s += report.elapsed_s
            for ratio in self.ratio_sums:
                self.ratio_sums[ratio] += getattr(report, ratio)

    def _report(self, link: PartyLink, reply: Message) -> Report:
        """Read a party's report; what stands in for one reports no work."""
        report = Report.of(reply)
        if not link.absent:
            wall_s = time.monotonic() - self._round_began_s
            check_report(report, self.assigned[link.name], self.reports.get(link.name), self._work(link.name), wall_s)
        return report

    def _worked(self, link: PartyLink, before: PartyCosts, under_way_s: float | None) -> Worked:
        """Return a party's part of a round, by what was known of it before."""
        now_s = link.under_way_s
        cost = cost_since(before, self.costs[link.name])
        return Worked(self.reports[link.name], cost, None if now_s is None else now_s - (under_way_s or 0.0))

    def _work(self, name: str) -> RoundWork:
        """Return what a party had to compute in the round."""
        place = [link.name for link in self.links].index(name)
        samples = [shares[place].count for shares in self.exchanges.shares]
        embedded_first = sum(samples[: self.config.training.staleness + 1])
        return RoundWork(sum(samples), embedded_first, self.config.training.local_iterations)

    def _report_metrics(self) -> Metrics:
        metrics = {
            f"{tag}/{name}": float(value)
            for tag in SHOWN
            for name, report in self.reports.items()
            if (value := getattr(report, tag)) is not None
        }
        # Corollary 1: the convergence bound grows with both sums over rounds and parties.
        return metrics | {f"corollary1/sum_{ratio}": total for ratio, total in self.ratio_sums.items()}

    def _send(self, link: PartyLink, request: Message, take: Callable[[Message], T]) -> Callable[[], T]:
        """Send a message and book it; return a function that waits for the reply and returns ``take`` of it."""

        def checked(reply: Message) -> T:
            check_reply(request, reply)
            taken = take(reply)
            if not link.absent:
                self._book(link.name, "uplink", reply)
            return taken

        waiting = link.send(request, checked)
        if not link.absent:
            self._book(link.name, "downlink", request)
        return waiting

    def _book(self, name: str, direction: Direction, message: Message) -> None:
        book(self.costs[name], direction, message, self.exchanges.dense_frames(name, direction, message))


def _priced(alphas: Sequence[float], reply: Message) -> Prices:
    prices = Prices.of(reply)
    prices.curve(alphas)  # raises where they are other than asked for
    return prices
