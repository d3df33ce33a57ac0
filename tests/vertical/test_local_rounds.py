"""training.local_rounds: parties train alone, then together or never; against plain PyTorch and against themselves."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from shorthand import TWO, parties_of, train_rounds
from tiny_training import train_run
from torch import nn

from vfl.base.errors import Diverged
from vfl.compression.codec import encode
from vfl.core.label_protocol import HeadReplica
from vfl.core.presence import batch_rows
from vfl.core.round_orders import Agenda
from vfl.core.server import HeadServer
from vfl.messages.control import LocalReports, LocalRounds, RoundStart
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind
from vfl.models.auxiliary import AuxiliaryHead
from vfl.predict.predict import with_replacements
from vfl.predict.trained_run import open_federation
from vfl.runs.loop import Callback, TrainingLoop
from vfl.runs.stored_run import Run


def training(**changes: Any) -> dict[str, Any]:
    return {"local_rounds": 2} | changes


def head_of(server: HeadServer) -> AuxiliaryHead:
    head = server.trainer.head
    assert isinstance(head, AuxiliaryHead)
    return head


@pytest.mark.parametrize("iterations", [1, 3])
def test_a_party_alone_trains_as_plain_pytorch_does(build, iterations: int):
    server = build(data=TWO, training=training(local_iterations=iterations))
    party = parties_of(server)[1]
    model, classifier = copy.deepcopy(party.model), copy.deepcopy(head_of(server).classifiers[1])
    joint = copy.deepcopy(head_of(server).joint.state_dict())
    plain = nn.Sequential(model, classifier).train()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for round_index in range(2):
        server.train_round(round_index)
        for rows_B in batch_rows(3, round_index, 3, 48, 16):
            for _ in range(iterations):
                optimizer.zero_grad()
                F.cross_entropy(plain(party.train.features[rows_B]), server.exchanges.labels_N[rows_B]).backward()
                optimizer.step()
    for ours, theirs in ((party.model, model), (head_of(server).classifiers[1], classifier)):
        for name, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], value, rtol=2e-5, atol=1e-6)
    for name, value in head_of(server).joint.state_dict().items():
        assert value.equal(joint[name]), "the head waits"


def test_only_reports_and_classifiers_travel_until_they_meet(build):
    server = build(data=TWO, training=training())
    server.train_round(0)
    spent = server.ledger.costs["party_1"]
    assert set(spent.uplink_bytes) == {"control", "head"}
    assert set(spent.downlink_bytes) == {"control"}
    values = sum(each.numel() for each in head_of(server).classifiers[0].parameters())
    assert 4 * values < spent.uplink_bytes["head"] < 4 * values + 40
    assert spent.train_macs == spent.unpruned_train_macs == 3 * 48 * parties_of(server)[0].macs
    server.train_round(1)
    metrics = server.train_round(2)
    assert metrics["head_drift/party_1"] == 0.0
    assert {"embedding"} <= set(server.ledger.costs["party_1"].uplink_bytes)


def test_the_answer_is_the_mean_of_their_own_until_they_meet(build):
    server = build(data=TWO, training=training())
    for round_index in range(3):
        server.train_round(round_index)
        joint = server.joint
        embeddings = joint.embeddings(0, 40)
        own = [answer.log_softmax(1) for answer, _ in joint.own_answers(embeddings)]
        mean = torch.stack(own).mean(0)
        answer = joint.outputs(embeddings)
        assert torch.allclose(answer, mean, atol=1e-6) == (round_index < 2)
        labels = joint.samples.values
        expected = float((answer.argmax(1) == labels).double().mean())
        assert server.evaluate()["accuracy/test"] == pytest.approx(expected)


class Stop(Callback):
    def on_round(self, loop: TrainingLoop, round_index: int, metrics: dict[str, float]) -> None:
        if round_index == 0:
            loop.request_stop("stopped", to_resume=True)


def test_rounds_ahead_have_the_bits_of_one_at_a_time_and_end_before_a_stop(configure, tmp_path: Path):
    digests, bytes_sent = [], []
    for every, callbacks in ((1, []), (3, []), (3, [Stop()])):
        config = configure(
            data=TWO,
            training=training(rounds=4, local_rounds=3),
            lightweighting={"alpha": {1: 0.3}},
            evaluation={"every": every},
            checkpoint={"every": 10},
        )
        folder = tmp_path / f"{every} {len(callbacks)}"
        train_run(config, folder, *callbacks)
        if callbacks:
            assert Run(folder).checkpoints.rounds() == [3]
            train_run(config, folder, resume=True)
        summary = Run(folder).summary
        digests.append(summary["model_digest"])
        bytes_sent.append(sum(party["bytes_by_kind"]["uplink"]["head"] for party in summary["parties"].values()))
    assert len(set(digests)) == 1
    assert bytes_sent[0] == 3 * bytes_sent[1] == 3 * bytes_sent[2], "classifiers travel where parties meet"


def test_owners_that_never_meet_predict_what_they_tested(configure, tmp_path: Path):
    config = configure(data=TWO, training=training(rounds=2))
    train_run(config, tmp_path / "run")
    run = Run(tmp_path / "run")
    joint = open_federation(run, with_data=True).joint
    accuracy = float((joint.predictions().argmax(1) == joint.samples.values).double().mean())
    assert accuracy == pytest.approx(run.summary["test_accuracy"])
    assert run.summary["alone"].keys() == {"party_1", "party_2"}
    # Who is away is left out of the mean: no zeros replace it, of which a warning would tell.
    without = with_replacements(joint, ["party_1"], "placeholder").predictions()
    assert without.equal(with_replacements(joint, ["party_1"], "own").predictions())


def test_a_party_is_told_each_test_once(build):
    """The rounds of one order that follow the first come after no test."""
    evaluation = {"tell_parties": True, "every": 2}
    server = build(data=TWO, training=training(local_rounds=4), evaluation=evaluation, checkpoint={"every": 9})
    tested: list[Any] = []
    for number in range(4):
        server.train_round(number)
        tested.append(server.assigned["party_1"].tested)
        if number % 2:
            server.evaluate()
    assert [each is not None for each in tested] == [False, False, True, False]


def test_a_pruning_where_they_meet_is_tested_by_one_answer(build):
    """Not by the mean before it, and by a head that has learned nothing after it."""
    server = build(data=TWO, training=training(), lightweighting={"alpha": {2: 0.3}})
    metrics = train_rounds(server, 3)[-1]
    party = parties_of(server)[0]
    assert party.pruner.alpha_max == 0.3
    assert not head_of(server).averages
    again = build(data=TWO, training=training(), lightweighting={"alpha": {2: 0.3}})
    train_rounds(again, 2)
    again.start_round(2)
    assert head_of(again).averages
    pruned = again.evaluation.test_pruning()
    assert metrics["accuracy/test_after_pruning"] == pruned["accuracy/test_after_pruning"]
    assert metrics["loss/test_before_pruning"] == pruned["loss/test_before_pruning"]


def learned(party: Any, request: Message, **changes: Any) -> tuple[LocalReports, bytes]:
    """Return the party's honest answer, its first report changed."""
    reply = party.handle(request)
    first, *others = LocalReports.of(reply).reports
    return LocalReports(reports=(first.model_copy(update=changes), *others)), bytes(reply.only(PartKind.HEAD))


LIES: dict[str, tuple[dict[str, Any], Callable[[LocalReports, bytes], tuple[Part, ...]]]] = {
    "no classifier": ({}, lambda reports, _: (reports.part(),)),
    "two classifiers": ({}, lambda reports, head: (reports.part(), *[Part(PartKind.HEAD, head)] * 2)),
    "half a classifier": ({}, lambda reports, head: (reports.part(), Part(PartKind.HEAD, head[:-4]))),
    "another size": ({}, lambda reports, _: (reports.part(), Part(PartKind.HEAD, encode(torch.zeros(3))))),
    "NaN": ({}, lambda reports, _: (reports.part(), Part(PartKind.HEAD, encode(torch.full((90,), torch.nan))))),
    "3e38": ({}, lambda reports, _: (reports.part(), Part(PartKind.HEAD, encode(torch.full((90,), 3e38))))),
    "no reports": ({}, lambda _, head: (Part(PartKind.HEAD, head),)),
    "a report too few": (
        {},
        lambda reports, head: (LocalReports(reports=reports.reports[1:]).part(), Part(PartKind.HEAD, head)),
    ),
    "a report too many": (
        {},
        lambda reports, head: (
            LocalReports(reports=(*reports.reports, *reports.reports)).part(),
            Part(PartKind.HEAD, head),
        ),
    ),
} | {
    f"{name} of {value}": (
        {name: value},
        lambda reports, head: (reports.part(), Part(PartKind.HEAD, head)),
    )
    for name, value in (
        ("own_loss", None),
        ("alpha", 0.5),
        ("beta", 0.5),
        ("resolution", 0.5),
        ("head_drift", 0.0),
        ("train_macs", 1),
        ("unpruned_train_macs", 0),
        ("macs_per_sample", 1),
        ("refit_macs", 5),
        ("train_time_s", "1.000000e+06"),
    )
}
"""What a party may answer in place of reports of its rounds and its classifier: changes of the first report, and the
parts."""


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_local_rounds_is_refused_and_changes_nothing(build, lie: str):
    server = build(data=TWO, training=training(), evaluation={"every": 2}, checkpoint={"every": 2})
    changes, make = LIES[lie]
    party: Any = parties_of(server)[1]
    before = copy.deepcopy(head_of(server).classifiers[1].state_dict())
    assert sum(each.numel() for each in before.values()) == 90
    honest = party.handle

    def lying(request: Message, *samples: Any) -> Message:
        if request.kind is not Kind.TRAIN_ALONE:
            return honest(request, *samples)
        party.handle = honest
        return Message(Kind.LEARNED, 0, 0, make(*learned(party, request, **changes)))

    party.handle = lying
    with pytest.raises((ValueError, Diverged), match=r"Report|classifier|LEARNED"):
        server.train_round(0)
    assert server.reports.last.keys() <= {"party_1"}
    for name, value in head_of(server).classifiers[1].state_dict().items():
        assert value.equal(before[name])


def test_the_largest_losses_that_parties_may_report_have_a_mean(build):
    server = build(data=TWO, training=training())
    for party in parties_of(server):
        honest = party.train_alone

        def most(message: Message, honest: Any = honest) -> tuple[Part, Part]:
            reports, classifier = honest(message)
            (only,) = LocalReports.from_json(reports.payload).reports
            return LocalReports(reports=(only.model_copy(update={"own_loss": 1.7e308}),)).part(), classifier

        party.train_alone = most
    assert server.train_round(0)["loss/train"] == pytest.approx(1.7e308)


def order(round_index: int, rounds: int) -> Message:
    starts = LocalRounds(rounds=(RoundStart(alpha=0.0, beta=0.0),) * rounds)
    return Message(Kind.TRAIN_ALONE, round_index, 0, (starts.part(),))


def test_a_party_trains_alone_only_when_it_is_due():
    agenda = Agenda("a", 3, 0, 0, local_rounds=4)
    for wrong in (order(1, 1), order(0, 5), Message(Kind.START_ROUND, 0)):
        with pytest.raises(MessageError):
            agenda.check(wrong)
    agenda.check(order(0, 3))
    for wrong in (order(0, 1), order(3, 2), Message(Kind.START_ROUND, 3)):
        with pytest.raises(MessageError):
            agenda.check(wrong)
    agenda.check(order(3, 1))
    agenda.check(Message(Kind.START_ROUND, 4))
    with pytest.raises(MessageError):
        agenda.check(order(5, 1))


def test_a_party_without_labels_does_not_train_alone(build):
    server = build(data=TWO, training=training(labels="server", local_rounds=0))
    party = parties_of(server)[0]
    assert not isinstance(party.protocol, HeadReplica)
    with pytest.raises(MessageError):
        party.handle(order(0, 1))
