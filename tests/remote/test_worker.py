"""A party carries out what is due and nothing else, and keeps its own checkpoints."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from shorthand import parties_of

from vfl.base.modules import weights_digest
from vfl.core.build import build_party
from vfl.core.party import FeatureParty
from vfl.data.samples import Samples
from vfl.data.source import AsItIs, Prepared
from vfl.messages.messages import Kind, Message, MessageError, PartKind, control
from vfl.models.features import Features
from vfl.parties.network.party.party_monitor import PartyMonitor
from vfl.parties.network.party.training_session import PartyWorker, open_store
from vfl.parties.network.wire.session import Restore, Save, Saved
from vfl.runs.checkpoint import State
from vfl.runs.runtime import start_runtime

RUN = "0123456789abcdef"
RATIOS = control({"alpha": 0.0, "beta": 0.0})


class Server:
    """Sends orders to a worker as a server does."""

    def __init__(self, worker: PartyWorker, session: int = 1) -> None:
        self.worker = worker
        self.session = session
        self.sequence = 0

    def order(self, message: Message) -> Message:
        self.sequence += 1
        return replace(message, run=RUN, session=self.session, sequence=self.sequence)

    def ask(self, message: Message) -> Message:
        return self.worker.answer(self.order(message))

    def restore(self, rounds: int = 0, digest: str = "", as_of: int | None = None) -> Message:
        restore = Restore(round=rounds, digest=digest, as_of=rounds if as_of is None else as_of)
        return self.ask(Message(Kind.RESTORE, parts=(restore.part(),)))

    def round(self, index: int) -> None:
        self.ask(Message(Kind.START_ROUND, index, parts=(RATIOS,)))
        reply = self.ask(Message(Kind.EMBED, index, 0))
        gradient = reply.parts[0].payload  # of the right shape, and that is all that matters
        parts = (type(reply.parts[0])(PartKind.GRADIENT, gradient),)
        self.ask(Message(Kind.END_ROUND, index, 0, parts))

    def save(self, rounds: int) -> str:
        return Saved.of(self.ask(Message(Kind.SAVE, parts=(Save(round=rounds).part(),)))).digest


@pytest.fixture
def make_worker(configure, tmp_path: Path):
    config = configure(
        data={"train_samples": 16, "test_samples": 8, "partition": {"rows": 1, "columns": 1}},
        models={"feature": {"kind": "mlp", "embedding_size": 4, "width": 0.1}},
        training={"labels": "server", "batch_size": 16, "rounds": 9},
    )
    runtime = start_runtime(config)
    features = torch.randn(16, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    train, test = Samples(torch.arange(16), features), Samples(torch.arange(16, 24), features[:8])
    data = Prepared(AsItIs(Features("images", (1, 4, 4))), train, test)

    def restore(state: State | None) -> FeatureParty:
        party = build_party("party_1", data, None, config, runtime)
        if state is not None:
            party.load_state_dict(state)
        return party

    return lambda: PartyWorker(RUN, restore, open_store(tmp_path, keep=2))


def weights(worker: PartyWorker) -> str:
    assert worker.party is not None
    return weights_digest(worker.party.model.state_dict())


def test_a_restored_party_goes_on_with_the_same_bits(make_worker):
    straight = Server(make_worker())
    straight.restore()
    for index in range(3):
        straight.round(index)
    server = Server(make_worker())
    assert server.restore() == Message(Kind.RESTORED, run=RUN, session=1, sequence=1)
    server.round(0)
    server.round(1)
    digest = server.save(2)
    server.round(2)
    assert weights(server.worker) == weights(straight.worker)
    again = Server(make_worker(), session=7)  # another process
    again.restore()
    again.restore(2, digest)
    again.round(2)
    assert weights(again.worker) == weights(straight.worker)


def test_it_keeps_one_checkpoint_more_than_the_server(make_worker):
    server = Server(make_worker())
    server.restore()
    for index in range(4):
        server.round(index)
        server.save(index + 1)
    assert server.worker.store.rounds() == [2, 3, 4]


def test_a_checkpoint_that_is_another(make_worker):
    server = Server(make_worker())
    server.restore()
    server.round(0)
    server.save(1)
    with pytest.raises(ValueError, match=r"round 1 in .* is not the one that the server's checkpoint refers to"):
        Server(server.worker, 2).restore(1, "0" * 64)
    with pytest.raises(ValueError, match="no checkpoint after round 5"):
        Server(server.worker, 3).restore(5, "0" * 64)


STRANGE: dict[str, tuple[dict[str, Any], str]] = {
    "of another run": (
        {"run": "fedcba9876543210"},
        f"EMBED of run fedcba9876543210 came, this is run {RUN}",
    ),
    "duplicated": ({"sequence": 2}, "EMBED 2 came again: a duplicate or a replay"),
    "replayed": ({"sequence": 1}, "EMBED 1 came again"),
    "ahead of another": ({"sequence": 4}, "EMBED 4 came out of order, 3 is due"),
    "of an earlier session": ({"session": 4}, "EMBED 3 of session 4 came, this party is in session 5"),
    "of a session not begun": ({"session": 6}, "EMBED 3 of session 6 came, this party is in session 5"),
    "of no run": ({"run": ""}, r"EMBED of run \(none\) came"),
    "no order": ({"kind": Kind.EMBEDDING}, "EMBEDDING came, which is no order"),
    "of the session's kinds, and no order": ({"kind": Kind.GOODBYE}, "GOODBYE came, which is no order"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_an_order_that_is_not_due(make_worker, case: str):
    changes, message = STRANGE[case]
    server = Server(make_worker(), session=5)
    server.restore()
    server.ask(Message(Kind.START_ROUND, 0, parts=(RATIOS,)))
    before = weights(server.worker)
    order = server.order(Message(Kind.EMBED, 0, 0))
    with pytest.raises(MessageError, match=message):
        server.worker.answer(replace(order, **changes))
    assert weights(server.worker) == before
    assert server.worker.answer(order).kind is Kind.EMBEDDING  # the one that is due is still due


def test_rounds_come_one_after_another(make_worker):
    server = Server(make_worker())
    server.restore()
    with pytest.raises(MessageError, match="round 2 came where 1 is due"):
        server.ask(Message(Kind.START_ROUND, 1, parts=(RATIOS,)))
    server.round(0)
    with pytest.raises(MessageError, match="round 1 came where 2 is due"):
        server.ask(Message(Kind.START_ROUND, 0, parts=(RATIOS,)))
    server.ask(Message(Kind.START_ROUND, 1, parts=(RATIOS,)))
    server.ask(Message(Kind.EMBED, 1, 0))
    with pytest.raises(
        MessageError, match="not at END_ROUND of round 3, exchange 1, but at END_ROUND of round 2, exchange 1"
    ):
        server.ask(Message(Kind.END_ROUND, 2))
    with pytest.raises(MessageError, match="SAVE after round 5 came, this session has trained 1"):
        server.save(5)


def test_orders_before_restore_are_refused(make_worker):
    for session in (0, 1):
        server = Server(make_worker(), session)
        with pytest.raises(MessageError, match="EMBED came before RESTORE"):
            server.ask(Message(Kind.EMBED))
        server.sequence = 0
        with pytest.raises(MessageError, match="SAVE came before RESTORE"):
            server.save(0)


def test_a_round_ends_after_its_exchanges_in_order(make_worker):
    server = Server(make_worker())
    server.restore()
    server.ask(Message(Kind.START_ROUND, 0, parts=(RATIOS,)))
    with pytest.raises(
        MessageError, match="not at END_ROUND of round 1, exchange 1, but at EMBED of round 1, exchange 1"
    ):
        server.ask(Message(Kind.END_ROUND, 0))
    with pytest.raises(MessageError, match="not at EMBED of round 1, exchange 2"):
        server.ask(Message(Kind.EMBED, 0, 1))
    with pytest.raises(MessageError, match="SAVE after round 1 came, this session has trained None"):
        server.save(1)


def kept(worker: PartyWorker) -> dict[int, str]:
    return {rounds: worker.store.digest(rounds) for rounds in worker.store.rounds()}


@pytest.fixture
def history(make_worker) -> tuple[PartyWorker, dict[int, str]]:
    """A party with rounds 2, 3 and 4 on disk."""
    server = Server(make_worker())
    server.restore()
    for index in range(4):
        server.round(index)
        server.save(index + 1)
    return server.worker, kept(server.worker)


def restore_as_of(server: Server, rounds: int, digest: str, as_of: int) -> None:
    server.restore(rounds, digest, as_of)


@pytest.mark.parametrize("as_of", [3, 10, 2**32 - 1])
def test_a_round_that_the_experiment_has_not_is_no_place_to_go_on_from(history, as_of: int):
    worker, before = history
    with pytest.raises(MessageError, match=f"round 4 as of {as_of} came, the experiment has 9 rounds"):
        restore_as_of(Server(worker, 2), 4, before[4], as_of)
    assert kept(worker) == before


def test_nothing_untrained_is_saved(history):
    worker, before = history
    server = Server(worker, 2)
    restore_as_of(server, 4, before[4], 7)
    for rounds in (7, 8, 5, 0, 2**32 - 1):
        with pytest.raises(MessageError, match="this session has trained None"):
            server.save(rounds)
    assert kept(worker) == before


def test_a_session_that_begins_anew_does_not_replace_history(history):
    worker, before = history
    for session, first in ((2, 0), (3, 6)):
        server = Server(worker, session)
        restore_as_of(server, 0, "", first)
        server.round(first)
        with pytest.raises(ValueError, match=r"after rounds \[2, 3, 4\], from which this session does not go on"):
            server.save(first + 1)
    assert kept(worker) == before


def test_invented_rounds_do_not_evict_those_that_the_run_needs(history):
    worker, before = history
    for session, invented in enumerate((8, 7, 6, 5), start=2):  # each trained to its end, as of a round to come
        server = Server(worker, session)
        restore_as_of(server, 4, before[4], invented)
        server.round(invented)
        with suppress(ValueError):  # at last, that there is no room for more
            server.save(invented + 1)
    assert {rounds: kept(worker).get(rounds) for rounds in (3, 4)} == {rounds: before[rounds] for rounds in (3, 4)}
    assert len(kept(worker)) <= 2 * worker.store.keep


def test_a_session_restores_at_its_beginning_only(history):
    worker, before = history
    server = Server(worker, 2)
    server.restore()
    server.restore(4, before[4])
    with pytest.raises(MessageError, match="RESTORE came as order 3: a session begins with it"):
        server.restore(3, before[3])


def test_an_owners_view_goes_on_over_a_row_that_was_cut_off(make_worker, tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"round": 0, "given/bytes": 5.0}\n{"round": 1, "gi')
    party = make_worker().restore(None)
    view = PartyMonitor("party_1", party.config, tmp_path, Console(quiet=True), len(party.train), len(party.test))
    request = Message(Kind.START_ROUND, 1, parts=(RATIOS,))
    view.note(party, party.test, request, reply := Message(Kind.DONE, 1))
    view.close()
    assert view.given["bytes"] == 5.0 + reply.size


def test_an_owners_view_of_rounds_alone_is_the_servers(build, tmp_path: Path):
    """Bytes are of the same rounds, and such rounds give no training row away, also where the view begins later."""
    data, training = {"partition": {"rows": 1, "columns": 2}}, {"rounds": 3, "local_rounds": 2, "batch_size": 16}
    server = build(data=data, training=training, evaluation={"every": 2}, checkpoint={"every": 2})
    party: Any = parties_of(server)[0]
    views = [
        PartyMonitor("party_1", party.config, tmp_path / name, Console(quiet=True), len(party.train), len(party.test))
        for name in ("whole", "late")
    ]
    for view in views:
        view.run_dir.mkdir()
    honest = party.handle

    def watched(request: Message, *samples: Any) -> Message:
        reply = honest(request, *samples)
        views[0].note(party, party.test, request, reply)
        if request.kind in (Kind.START_ROUND, Kind.END_ROUND):
            views[1].note(party, party.test, request, reply)
        return reply

    party.handle = watched
    rows = [server.train_round(number) for number in range(3)]
    for view in views:
        view.close()
    own, late = (
        [json.loads(row) for row in (view.run_dir / "metrics.jsonl").read_text().splitlines()] for view in views
    )
    for mine, servers in zip(own, rows, strict=True):
        for tag in ("uplink_bytes/party_1", "downlink_bytes/party_1"):
            assert mine.get(tag, 0) == servers[tag]
    assert [row["given/rows"] for row in own] == [0, 0, len(party.train)]
    assert [row["given/rows"] for row in late] == [0], "it embedded nothing that this view saw"
