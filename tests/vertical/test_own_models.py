"""Models that users bring: each kind trains unpruned, and a training that prunes nothing examines none."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusals import refused
from shorthand import at_every_run, check_resumed, links_of
from torch import Tensor, nn
from torch.nn.utils import prune

from vfl.base.macs import count_macs
from vfl.compression.party_pruner import PartyPruner
from vfl.config.components import FEATURE_MODELS
from vfl.core.build import build_finished_party
from vfl.plan.plan import plan_tables

TOKENS, WIDTH = 16, 16
"""An image of 256 values, cut into tokens."""


class Keeping(nn.Module):
    """Keeps what it computed, in a list too."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.embedding = nn.Linear(256, 8), nn.Linear(8, 4)
        self.last: Tensor | None = None
        self.all: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.hidden(images.flatten(1)).relu()
        self.last, self.all = hidden, [hidden, 2 * hidden]
        return self.embedding(hidden)


class Attending(nn.Module):
    def __init__(self, *, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.need_weights, self.embedding = need_weights, nn.Linear(WIDTH, 4)

    def forward(self, images: Tensor) -> Tensor:
        tokens = images.reshape(len(images), TOKENS, WIDTH)
        return self.embedding(self.attention(tokens, tokens, tokens, need_weights=self.need_weights)[0].mean(1))


def perceptron(change: Callable[[nn.Linear], Any]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), change(nn.Linear(256, 8)), nn.ReLU(), nn.Linear(8, 4))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 24, dropout=0.1, batch_first=True)
    blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (TOKENS, WIDTH)), blocks, nn.Flatten(), nn.Linear(256, 4))


KINDS: dict[str, Callable[[], Any]] = {
    "compiled": lambda: torch.compile(perceptron(nn.Identity()), backend="eager"),
    "compiled_part": lambda: perceptron(lambda layer: torch.compile(layer, backend="eager")),
    "keeping": Keeping,
    "weight_norm": lambda: perceptron(nn.utils.weight_norm),
    "weight_norm_of_today": lambda: perceptron(nn.utils.parametrizations.weight_norm),
    "spectral_norm": lambda: perceptron(nn.utils.spectral_norm),
    "spectral_norm_of_today": lambda: perceptron(nn.utils.parametrizations.spectral_norm),
    "masked": lambda: perceptron(lambda layer: prune.l1_unstructured(layer, "weight", 0.5)),
    "attention": lambda: Attending(need_weights=False),
    "attention_with_weights": lambda: Attending(need_weights=True),
    "encoder": encoder,
}

pytestmark = pytest.mark.filterwarnings("ignore:.*(deprecated|nested tensor)")


@pytest.fixture(params=at_every_run(KINDS, "compiled", "keeping", "attention"))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(FEATURE_MODELS.added, request.param, lambda spec: KINDS[request.param]())
    return request.param


def settings(kind: str):
    models = {"feature": {"kind": kind, "embedding_size": 4}}
    return {"models": models, "training": {"batch_size": 16}}


def test_every_kind_trains_unpruned_and_resumes_with_its_bits(kind: str, build):
    whole = check_resumed(build, 1, 2, **settings(kind))
    party = links_of(whole)[0].party
    assert whole.reports.last["party_1"].macs_per_sample == count_macs(KINDS[kind](), *party.example) > 0
    row = party.batch(party.train, torch.tensor([0, 1]))
    torch.testing.assert_close(party.evaluated.embed_each(row), party.evaluated.embed("finished", row, 0.0))


def test_without_alpha_nothing_is_examined(build, monkeypatch: pytest.MonkeyPatch):
    examined: list[PartyPruner] = []

    def examine(pruner: PartyPruner) -> None:
        examined.append(pruner)
        raise AssertionError("a model was examined that nobody prunes")

    monkeypatch.setattr(PartyPruner, "can_prune", examine)
    server = build(**settings("cnn"))
    server.train_round(0)
    server.evaluate()
    state = copy.deepcopy(server.state_dict())
    server.summary()
    resumed = build(**settings("cnn"))
    resumed.load_state_dict(state)
    resumed.train_round(1)
    assert examined == []


def test_a_refusal_names_the_party_and_the_way_out(build):
    added = FEATURE_MODELS.added
    added["mixed"] = lambda spec: nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.Softmax(1), nn.Linear(8, 4))
    try:
        kinds = {"party_1": {"kind": "mixed", "embedding_size": 4}}
        with refused("lightweighting.alpha", "party_1"):
            build(models={"parties": kinds}, lightweighting={"alpha": 0.5})
        others = {"party_2": 0.5, "party_3": 0.5}
        server = build(models={"parties": kinds}, lightweighting={"alpha": others})
        server.train_round(0)
        assert [server.reports.last[f"party_{k}"].alpha for k in (1, 2, 3, 4)] == [0, 0.5, 0.5, 0]
    finally:
        del added["mixed"]


@pytest.mark.parametrize(
    "kind",
    at_every_run(["compiled", "keeping", "attention", "attention_with_weights", "encoder"], "keeping", "attention"),
)
def test_pruned_heads_and_units_resume_refit_and_answer(kind: str, build, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FEATURE_MODELS.added, kind, lambda spec: KINDS[kind]())
    sections = settings(kind) | {"lightweighting": {"alpha": {0: 0.3, 1: 0.5}, "pruning": {"refit": True}}}
    whole = check_resumed(build, 1, 2, **sections)
    party = links_of(whole)[0].party
    assert party.macs < party.unpruned_macs
    answering = build_finished_party(party.name, party.data, party.state_dict(), party.config, party.runtime)
    row = party.batch(party.train, torch.tensor([0, 1]))
    torch.testing.assert_close(answering.evaluated.embed("finished", row, 0), party.evaluated.embed("finished", row, 0))


def test_what_stays_whole_is_named_with_its_share_in_the_summary_and_the_plan(build, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FEATURE_MODELS.added, "attention", lambda spec: fixed_width())
    with pytest.warns(UserWarning, match=r"stay whole, \d+%"):
        server = build(**settings("attention"), lightweighting={"alpha": 0.5})
    server.train_round(0)
    whole = server.summary()["parties"]["party_1"]["whole"]
    assert "1.qkv" in whole["layers"]
    assert 0 < whole["macs"] < 1
    titles = [str(table.title) for table in plan_tables(server, [link.party for link in links_of(server)])]
    assert any("party_1" in title and "smaller" in title for title in titles)


class FixedWidth(nn.Module):
    """Attention whose output's shape is written down: no head can go, the perceptron beside it can."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.fc1 = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 24)
        self.fc2 = nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(len(x), TOKENS, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(x), TOKENS, WIDTH)
        x = x + self.proj(mixed)
        return x + self.fc2(self.fc1(x).relu())


def fixed_width() -> nn.Module:
    tokens = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (TOKENS, WIDTH)))
    return nn.Sequential(tokens, FixedWidth(), nn.Flatten(), nn.Linear(TOKENS * WIDTH, 4))
