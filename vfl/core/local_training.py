"""Rounds that parties train alone, before they meet or instead of it (``training.local_rounds``): the server's side.

A party trains its feature model and its own classifier on the labels that it holds: no embedding, head or gradient
travels. One order has the ratios of all rounds up to the next at which the parties meet, for a test or a checkpoint;
its answer has their reports and the classifier. So no party waits for a slow one in between.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from vfl.core.costs.reports import Reports, check_report
from vfl.core.exchanges import Exchanges
from vfl.core.own_classifier import classifier_of, load_classifier
from vfl.messages.control import LocalReports, LocalRounds, RoundReport, RoundStart
from vfl.messages.messages import Kind, Message, MessageError, PartKind


class LocalRound(NamedTuple):
    """A round that all parties have trained alone."""

    assigned: dict[str, RoundStart]
    reports: dict[str, RoundReport | None]
    """By party; None of one that is away."""


@dataclass(eq=False)
class LocalTraining:
    """Orders local rounds, and keeps the reports of those that are ahead of the loop."""

    exchanges: Exchanges
    """Whose parties, head and batches these rounds have."""
    reports: Reports
    ahead: dict[int, LocalRound] = field(default_factory=dict[int, LocalRound], init=False)
    """Rounds that are done and not yet counted."""

    def order(self, assigned: Mapping[int, dict[str, RoundStart]]) -> None:
        """Let all parties train consecutive rounds with these assignments, and load their classifiers."""
        began_s = time.monotonic()
        exchanges = self.exchanges
        masks = [exchanges.presence.of_round(each, exchanges.batches(each)) for each in assigned]
        starts = {name: tuple(each[name] for each in assigned.values()) for name in exchanges.roster.names}
        replies = [
            party.ask(Message(Kind.TRAIN_ALONE, min(assigned), 0, (LocalRounds(rounds=starts[party.name]).part(),)))
            for party in exchanges.roster
        ]
        ahead = {number: LocalRound(of_round, {}) for number, of_round in assigned.items()}
        for position, reply in enumerate(replies):
            name = reply.party.name
            samples = [[exchange[position].count for exchange in of_round] for of_round in masks]
            reports = reply.read(partial(self._read, position, starts[name], samples, began_s))
            for done, report in zip(ahead.values(), reports or [None] * len(ahead), strict=True):
                done.reports[name] = report
        self.ahead = ahead

    def _read(
        self,
        position: int,
        assigned: Sequence[RoundStart],
        samples: Sequence[Sequence[int]],
        began_s: float,
        reply: Message,
    ) -> tuple[RoundReport, ...]:
        """Read a party's reports and classifier. Raises MessageError, naming the key, for what cannot be true."""
        name = self.exchanges.roster.names[position]
        reports = LocalReports.of(reply).reports
        if len(reports) != len(assigned):
            raise MessageError(f"LocalReports: {len(reports)} of {len(assigned)} rounds")
        before, wall_s = self.reports.last.get(name), time.monotonic() - began_s
        for report, start, counts in zip(reports, assigned, samples, strict=True):
            check_report(report, start, before, self.exchanges.work, counts, wall_s, local=True)
            before = report
        classifier = classifier_of(self.exchanges.trainer.head, position)
        load_classifier(classifier, reply.only(PartKind.HEAD), f"{name}'s classifier")
        return reports
