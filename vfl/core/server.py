"""The head server: holds the labels and the head model, and drives the parties round by round.

Shapes: N training samples.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from vfl.base.costs import shares_saved
from vfl.base.modules import check_same_data, combined_digest, weights_digest
from vfl.core.costs.controllers import (
    Assign,
    ControllerContext,
    add_resolutions,
    build_controller,
    decision_metrics,
    warn_of_unmet,
)
from vfl.core.costs.forecast import PriceList, Ratios
from vfl.core.costs.ledger import Clock
from vfl.core.costs.reports import Reports
from vfl.core.evaluation import Evaluation
from vfl.core.exchanges import Exchanges
from vfl.core.joint_model import JointModel
from vfl.core.local_training import LocalTraining
from vfl.core.privacy.epsilon import guarantees, movers
from vfl.core.tasks import task_state
from vfl.data.source import SERVER
from vfl.messages.control import MAX_LOCAL_ROUNDS, Description, RoundStart
from vfl.messages.messages import Kind, Message
from vfl.models.auxiliary import AuxiliaryHead
from vfl.models.mlp import has_placeholders
from vfl.runs.checkpoint import State
from vfl.runs.loop import Metrics, finite


class HeadServer:
    """The server's side of LVFL (Algorithm 1): an ``Algorithm`` of the training loop, which runs a round.

    Args:
        exchanges: of the training samples, between the parties and the head model.
        joint: the same parties and head, evaluated on the test samples.
        labels_digest: digest of the labels of both.
        on_exchange: called with (exchanges done, exchanges of the round).
    """

    def __init__(
        self,
        exchanges: Exchanges,
        joint: JointModel,
        labels_digest: str,
        on_exchange: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.exchanges, self.on_exchange = exchanges, on_exchange
        assert exchanges.roster.ledger is not None, "a training books its messages"
        self.roster, self.ledger = exchanges.roster, exchanges.roster.ledger
        self.trainer, self.config = exchanges.trainer, exchanges.config
        config, self.lightweighting = self.config, self.config.lightweighting
        self.joint, self.evaluation = joint, Evaluation(joint)
        self.labels_digest = labels_digest
        self.price_list = prices = PriceList(exchanges)
        context = ControllerContext(
            config.lightweighting, self.roster.names, config.training.rounds, lambda: prices.forecast
        )
        self.assign: Assign = build_controller(context)
        """Function that chooses the ratios of a round; another one can be set."""
        self._scheduled = self.assign
        self.past_ratios: Mapping[int, Mapping[str, Ratios]] = {}
        """Ratios by round that were chosen before a resume."""
        self.unmet: list[str] = []
        """Parties that the user was warned about, as they cannot reach the controller's goal."""
        self.ratios: Mapping[str, Ratios] = {}
        self.assigned: dict[str, RoundStart] = {}
        self.reports = Reports(exchanges.work)
        self.clock = Clock(config.simulation, exchanges.work)
        self.local = LocalTraining(exchanges, self.reports)
        """Rounds that parties train alone."""
        self._began_s = 0.0
        self._under_way_s: dict[str, float] = {}
        """Seconds under way up to the round's beginning, by party."""

    def train_round(self, round_index: int) -> Metrics:
        """Assign the ratios, run the round's exchanges, collect the parties' reports."""
        if round_index < self.config.training.local_rounds:
            return self._train_alone(round_index)
        self.start_round(round_index)
        metrics = self._test_pruning()
        self._let_average(False)  # not earlier: a pruning is tested by one answer, before it and after
        for exchange in range(self.exchanges.steps):
            self.exchanges.run(exchange)
            self.on_exchange(exchange + 1, self.exchanges.steps)
        self.end_round()
        metrics["loss/train"] = finite(float(torch.stack(self.exchanges.losses).mean()), "the training loss")
        metrics |= self._seconds(round_index) | decision_metrics(self.ratios)
        return metrics | self._metrics()

    def _metrics(self) -> Metrics:
        """Return the parts of a round's metrics that its assignments, reports and messages give."""
        metrics: Metrics = {}
        if self.config.lightweighting.resolution != 1.0:
            metrics = {f"resolution/{name}": each.resolution or 1.0 for name, each in self.assigned.items()}
        return metrics | self.reports.metrics() | self.ledger.round_metrics()

    def _let_average(self, averages: bool) -> None:
        """Set whether the parties' own answers are averaged."""
        if isinstance(self.trainer.head, AuxiliaryHead):
            self.trainer.head.averages = averages

    @property
    def rounds_ahead(self) -> int:
        """Local rounds that the parties have done and the loop has not counted."""
        return len(self.local.ahead)

    def _train_alone(self, round_index: int) -> Metrics:
        """Count a round that the parties train alone; first order it, with those before the parties meet again."""
        self.ledger.start_round()
        self._let_average(True)
        if not self.local.ahead:
            assigned: dict[int, dict[str, RoundStart]] = {}
            for each in range(round_index, self.meeting_after(round_index)):
                assigned[each] = self._assign(each)
                self.evaluation.forget()  # no test follows the rounds before the last
            self.local.order(assigned)
        self.assigned, reports = self.local.ahead.pop(round_index)
        for name, report in reports.items():
            self.ledger.record_report(name, self.reports.add(name, report))
        losses = [report.own_loss for report in reports.values() if report and report.own_loss is not None]
        # Divided first: the sum of a hostile party's largest number and another's is infinite.
        metrics = {"loss/train": sum(loss / len(losses) for loss in losses)} if losses else {}
        present = self.roster.present
        costs = {party.name: self.ledger.round_cost(party.name) for party in present}
        last = self.reports.last
        under_way_s = {party.name: last[party.name].elapsed_s for party in present if party.under_way_s is not None}
        metrics |= self.clock.end_round(round_index, last, costs, under_way_s, round_trips=1)
        return metrics | decision_metrics(self.ratios) | self._metrics()

    def meeting_after(self, round_index: int) -> int:
        """Return the next round before which the parties meet: for a test, a checkpoint, or to train together."""
        training, rounds = self.config.training, round_index + 1
        if self.lightweighting.measures or self.assign is not self._scheduled:
            return rounds  # ratios depend on the reports of the round before
        last = min(training.local_rounds, training.rounds, round_index + MAX_LOCAL_ROUNDS)
        while rounds < last and rounds % self.config.evaluation.every and rounds % self.config.checkpoint.every:
            rounds += 1
        return rounds

    def start_round(self, round_index: int) -> None:
        """Assign the round's ratios."""
        self.ledger.start_round()
        self._began_s = time.monotonic()
        self._under_way_s = {party.name: party.under_way_s or 0.0 for party in self.roster}
        parts, head_digest = self.exchanges.start_round(round_index)
        self.assigned = self._assign(round_index, head_digest)
        replies = [
            party.ask(Message(Kind.START_ROUND, round_index, 0, (self.assigned[party.name].part(), *own)))
            for party, own in zip(self.roster, parts, strict=True)
        ]
        for reply in replies:
            reply.wait()

    def _assign(self, round_index: int, head_digest: str | None = None) -> dict[str, RoundStart]:
        """Choose the ratios of a round, and return each party's assignment."""
        # Rates are measured: a round that is repeated after a resume could get other ratios. The controller runs
        # nevertheless, as it asks for the models' costs: as early as in a run without a resume.
        chosen = self.assign(round_index, self.clock.history)
        self.ratios = self.past_ratios.get(round_index) or chosen
        if self.lightweighting.measures and any(each.alpha > 0 for each in self.ratios.values()):
            self.price_list.ask()  # a controller may ask later, which would be too late
        self.unmet = warn_of_unmet(self.ratios, self.unmet)
        tested = self.evaluation.reached() if self.config.evaluation.tell_parties else None
        ratios_by_party = {name: self.ratios.get(name, Ratios()) for name in self.roster.names}
        return {
            name: RoundStart(
                alpha=ratios.alpha,
                beta=ratios.beta,
                resolution=ratios.resolution if ratios.resolution < 1 else None,
                head_digest=head_digest,
                tested=tested,
            )
            for name, ratios in add_resolutions(ratios_by_party, self.lightweighting, round_index).items()
        }

    def end_round(self) -> None:
        """Collect the parties' reports; nothing else is under way then."""
        samples = self.exchanges.samples()
        for reply in self.exchanges.end_round():
            name = reply.party.name
            read = partial(self.reports.read, name, self.assigned[name], samples[name], self._began_s)
            self.ledger.record_report(name, self.reports.add(name, reply.read(read)))

    def evaluate(self) -> Metrics:
        """Return metrics and mean loss of the joint model on all test samples, with the parties' finished models."""
        return self.evaluation.test()

    @property
    def metric(self) -> str:
        """The metric by which models are compared."""
        return self.evaluation.metric

    def describe(self) -> dict[str, Description]:
        """Return, by party, the digest of its weights and the widths of its prunable layers, now and as built."""
        replies = [party.ask(Message(Kind.DESCRIBE)) for party in self.roster]
        return {reply.party.name: reply.read(Description.of) or reply.party.described() for reply in replies}

    def summary(self) -> dict[str, Any]:
        """Return the totals of all rounds, and each party's present model and costs."""
        described = self.describe()
        head = {SERVER: weights_digest(self.trainer.head.state_dict())}
        weights = head | {name: each.weights_digest for name, each in described.items()}
        finished = head | {name: each.finished_digest for name, each in described.items()}
        exchanges = self.exchanges
        # Rows are released only in rounds with exchanges.
        rounds = max(0, len(self.clock.history) - self.config.training.local_rounds)
        moved_by = movers(self.config, self.trainer, weighted=exchanges.weights_N is not None)
        promised = guarantees(self.config, rounds, exchanges.steps, len(exchanges.labels_N), moved_by)
        totals = self.ledger.totals()
        return {
            **totals,
            "savings": {share.removeprefix("savings_"): value for share, value in shares_saved(totals).items()},
            "evaluation_macs": sum(each.evaluation_macs for each in described.values()),
            "model_digest": combined_digest(weights),
            "finished_model_digest": combined_digest(finished),
            "parties": {
                name: self.reports.present(name)
                | self.ledger.summary(name)
                | ({"weights_file": file} if (file := described[name].weights_file) else {})
                | described[name].whole()
                for name in self.roster.names
            },
            **({"positive_class": positive} if (positive := self.trainer.task.positive) else {}),
            "constant": self.trainer.task.constant(
                exchanges.labels_N, exchanges.weights_N, self.joint.samples.values, self.joint.samples.weights
            ),
            **self.evaluation.decided,
            **({"alone": self.evaluation.alone} if self.evaluation.alone else {}),
            **({"subsets": self.evaluation.subsets} if self.evaluation.subsets else {}),
            **({"privacy": promised} if promised else {}),
        }

    def state_dict(self) -> dict[str, State]:
        """Return the server's state, and its references to the parties' states."""
        own: State = {
            "head": self.trainer.state_dict(),
            "protocol": self.exchanges.protocol.state_dict(),
            "feedback": {party.name: party.receiver.state_dict() for party in self.roster},
            "costs": self.ledger.state_dict(),
            **self.reports.state_dict(),
            **self.evaluation.state_dict(),
            "clock": self.clock.state_dict(),
            "unmet": self.unmet,
            "prices": self.price_list.state_dict(),
            "data_digest": self.labels_digest,
            "task": task_state(self.trainer.task),
            "placeholders": has_placeholders(self.trainer.head),
        }
        return {SERVER: own} | self.roster.save(len(self.clock.history))

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue from a state."""
        own = state[SERVER]
        check_same_data("the labels", own["data_digest"], self.labels_digest)
        self.load_finished(own)
        self.exchanges.protocol.load_state_dict(own["protocol"])
        for party in self.roster:
            party.receiver.load_state_dict(own["feedback"][party.name])
        self.evaluation.load_state_dict(own)
        self.clock.load_state_dict(own["clock"])
        self.unmet = own["unmet"]
        self.price_list.load_state_dict(own["prices"])
        self.roster.load(state)

    def load_finished(self, own: State) -> None:
        """Load the trained head and the run's costs from the server's own state, with any data."""
        self.trainer.load_state_dict(own["head"])
        self.ledger.load_state_dict(own["costs"])
        self.reports.load_state_dict(own)

    def begin_with(self, own: State) -> None:
        """Begin with the head in the server's own state of a run, and the parties' models as last reported there."""
        self.trainer.begin_with(own["head"])
        self.reports.load_state_dict({"reports": own["reports"], "ratio_sums": self.reports.ratio_sums})

    def close(self) -> None:
        """Release the parties."""
        self.roster.close()

    def _test_pruning(self) -> Metrics:
        """Test before and after a pruning, if the round begins with one and is not the first."""
        reports, present = self.reports.last, [party.name for party in self.roster.present]
        assigned = [(self.assigned[name], reports[name]) for name in present if name in reports]
        if any(now.resolution != then.resolution for now, then in assigned):
            self.evaluation.forget()  # its images had other sizes
        rises = any(now.alpha > then.alpha for now, then in assigned)
        metrics = self.evaluation.test_pruning() if rises else {}
        self.evaluation.forget()
        return metrics

    def _seconds(self, round_index: int) -> Metrics:
        """Return the seconds of the round by tag."""
        totals_s = {party.name: party.under_way_s for party in self.roster.present}
        costs = {name: self.ledger.round_cost(name) for name in totals_s}
        under_way_s = {name: now_s - self._under_way_s[name] for name, now_s in totals_s.items() if now_s is not None}
        return self.clock.end_round(round_index, self.reports.last, costs, under_way_s)
