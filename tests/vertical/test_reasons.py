"""Reasons of scores: what owners moved is their Shapley value, what columns moved sums to what the score gained."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_config
from pydantic import ValidationError
from refusals import refuses
from shorthand import at_every_run, build_here
from tiny_training import train_run
from torch import Tensor, nn

from vfl.config import ConfigError
from vfl.core.build import GivenModules
from vfl.core.column_paths import ColumnPaths, signed_ranks
from vfl.core.joint_model import JointModel
from vfl.core.local import InProcess
from vfl.messages.control import Completeness, Explained, ReasonsOffer
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind
from vfl.predict.predict import predict
from vfl.predict.reasons import EXACT_OWNERS, Reasons, ReasonsWanted, explain, owner_values, read_told
from vfl.runs.stored_run import Run

pytestmark = pytest.mark.filterwarnings("ignore:.*is constant in the training rows", "ignore:.*without a row")
ROWS = 160
LABELS = {
    "two": lambda a, b, c: str(int(a + c > 0)),
    "many": lambda a, b, c: "xyz"[int(a > 0) + int(c > 0)],
    "decided": lambda a, b, c: str(int(c > 0)),
    "value": lambda a, b, c: f"{10 + 4 * a - 3 * c:.3f}",
}


def write(folder: Path, label: str = "two", rows: int = ROWS, seed: int = 0, gaps: int = 0) -> dict[str, Path]:
    """Write two owners' tables: numbers, a category and a column that never changes; the shop lacks some rows."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    numbers = draw.normal(size=(rows, 3)).round(3)
    if label == "decided":
        numbers[:, 2] += np.copysign(1, numbers[:, 2])  # never near its mean
    bank = [f"{k},{a},j{k % 3},7,{LABELS[label](a, b, c)}" for k, (a, b, c) in enumerate(numbers)]
    shop = [f"{k},{b},{c}" for k, (a, b, c) in enumerate(numbers) if not gaps or k % gaps]
    (folder / "bank.csv").write_text("\n".join(["k,age,job,same,late", *bank]))
    (folder / "shop.csv").write_text("\n".join(["k,noise,spent", *shop]))
    return {owner: folder / f"{owner}.csv" for owner in ("bank", "shop")}


def sections(tables: dict[str, Path], label: str = "two", **training: Any) -> dict[str, Any]:
    owners: dict[str, dict[str, Any]] = {owner: {"file": str(path), "key": "k"} for owner, path in tables.items()}
    owners["bank"] |= {"label": "late", "features": {"age": "number", "job": "category", "same": "number"}}
    adam = {"kind": "adam", "learning_rate": 0.01, "momentum": 0.0}
    return {
        "data": {
            "dataset": {"kind": "tables"},
            "tables": owners,
            "train_samples": None,
            "test_samples": None,
            "join": "left",
        },
        "task": "regression" if label == "value" else "classification",
        "models": {"feature": {"kind": "mlp", "width": 0.1, "embedding_size": 8}},
        "training": {"labels": "server", "optimizer": adam, "party_dropout": 0.2, "rounds": 6, **training},
    }


def trained(
    folder: Path, label: str = "two", gaps: int = 0, given: GivenModules | None = None, **over: Any
) -> InProcess:
    layers = sections(write(folder, label, gaps=gaps), label)
    for name, section in over.items():
        layers[name] = layers.get(name, {}) | section
    config = small_config(**layers)
    built = build_here(config, given=given)
    for round_index in range(0 if given else config.training.rounds):
        built.server.train_round(round_index)
    return built


def explained(joint: JointModel, *, steps: int = 16, of: str | None = None) -> Reasons:
    return explain(joint, ReasonsWanted(of, steps), "placeholder")


def check_sums(found: Reasons) -> None:
    torch.testing.assert_close(found.moved_NK.sum(dim=1), found.score_N - found.without_N, rtol=0, atol=1e-6)
    for own in found.columns.values():
        here = ~own.error_N.isnan()
        gained_n = (found.score_N - own.reference_N)[here]
        torch.testing.assert_close(own.moved_NC[here].sum(dim=1), gained_n, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_what_owners_moved_is_the_mean_over_all_orders_and_follows_their_order(seed: int):
    draw = np.random.default_rng(seed)
    values, order = draw.normal(scale=5, size=16).tolist(), draw.permutation(4).tolist()
    names = ["a", "b", "c", "d"]
    sets: list[tuple[int, ...]] = [*itertools.product((0, 1), repeat=4)]
    game = dict(zip(sets, values, strict=True))
    here = {name: torch.ones(1, 1) for name in names}

    def score(came: Mapping[str, Tensor]) -> Tensor:
        return torch.tensor([game[tuple(int(came[name][0, 0]) for name in names)]], dtype=torch.float64)

    whole = score(here)
    moved, without = owner_values(score, whole, here, {}, torch.zeros)
    expected = dict.fromkeys(names, 0.0)
    for each in itertools.permutations(names):
        for place, name in enumerate(each):
            before = tuple(int(other in each[:place]) for other in names)
            after = tuple(int(other in each[: place + 1]) for other in names)
            expected[name] += (game[after] - game[before]) / math.factorial(4)
    assert moved[0].tolist() == pytest.approx([*expected.values()], abs=1e-9)
    assert float(moved.sum()) == pytest.approx(float(whole - without), abs=1e-6)
    permuted, _ = owner_values(score, whole, {names[place]: here[names[place]] for place in order}, {}, torch.zeros)
    torch.testing.assert_close(permuted, moved[:, order], rtol=0, atol=1e-9)


def test_of_many_owners_drawn_orders_sum_alike_and_find_who_moves_nothing():
    names = [f"owner{place}" for place in range(EXACT_OWNERS + 3)]
    here = {name: torch.randn(2, 3, generator=torch.Generator().manual_seed(1)) for name in names}

    def score(came: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([came[name].double().sum(dim=1) for name in names[1:]]).sum(dim=0) ** 2

    whole = score(here)
    moved, without = owner_values(score, whole, here, {}, torch.zeros)
    torch.testing.assert_close(moved.sum(dim=1), whole - without, rtol=0, atol=1e-6)
    assert moved[:, 0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("steps", [1, 16])
def test_a_linear_split_model_has_its_coefficients_times_the_deviations(tmp_path: Path, steps: int):
    torch.manual_seed(0)
    models = {"bank": nn.Linear(3, 8), "shop": nn.Linear(2, 8)}
    head = nn.Linear(16, 2)
    built = trained(tmp_path, given=GivenModules(models, head))
    with pytest.warns(UserWarning, match="placeholder"):
        found = explained(built.server.joint, steps=steps)
    slope = head.weight[1] - head.weight[0]
    for place, party in enumerate(built.parties):
        own = slope[8 * place : 8 * place + 8]
        weights = (own @ models[party.name].weight).double()
        reference_W = party.preparation.reference()
        assert reference_W is not None
        deviations = (party.test.features - reference_W).double()
        expected = torch.stack([(deviations * weights)[:, [*p]].sum(1) for p in party.preparation.column_places], dim=1)
        torch.testing.assert_close(found.columns[party.name].moved_NC, expected, rtol=1e-4, atol=1e-5)
        embedded = models[party.name](party.test.features).double()
        torch.testing.assert_close(found.moved_NK[:, place], embedded @ own.double(), rtol=1e-4, atol=1e-5)
    check_sums(found)


@pytest.mark.parametrize("label", ["two", "many", "value"])
@pytest.mark.parametrize("members", at_every_run([1, 2], 2))
def test_amounts_sum_to_what_they_explain_and_a_constant_column_moves_nothing(tmp_path: Path, label: str, members: int):
    built = trained(tmp_path, label, models={"members": members}, data={"numbers": "both"} if members > 1 else {})
    joint = built.server.joint
    found = explained(joint)
    check_sums(found)
    predictions = joint.predictions().double()
    chosen = found.score_N if label == "value" else found.score_N.sigmoid()
    wanted = predictions[:, 0] if label == "value" else predictions.gather(1, found.of_N[:, None])[:, 0]
    torch.testing.assert_close(chosen, wanted, rtol=1e-4, atol=1e-5)
    if label == "many":
        assert torch.equal(found.of_N, predictions.argmax(dim=1))
    names = found.columns["bank"].names
    assert sorted(names) == ["age", "job", "same"]
    assert not found.columns["bank"].moved_NC[:, names.index("same")].any()
    assert bool(found.columns["bank"].moved_NC[:, names.index("job")].any())


def test_more_steps_leave_less_to_be_spread(tmp_path: Path):
    joint = trained(tmp_path).server.joint
    errors = [explained(joint, steps=steps).columns["bank"].error_N.abs().mean() for steps in (1, 16, 256)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3


def test_reasons_are_those_of_the_model_as_it_is_now(tmp_path: Path):
    federation, other = trained(tmp_path, training={"rounds": 3}), trained(tmp_path, training={"rounds": 2})
    before = explained(other.server.joint)
    other.server.train_round(2)
    found, expected = explained(other.server.joint), explained(federation.server.joint)
    assert not torch.equal(found.columns["shop"].moved_NC, before.columns["shop"].moved_NC)
    for owner, own in expected.columns.items():
        torch.testing.assert_close(found.columns[owner].moved_NC, own.moved_NC, rtol=0, atol=0)


def test_one_class_can_be_named(tmp_path: Path):
    joint = trained(tmp_path, "many").server.joint
    task = joint.task
    for place, name in enumerate(task.names):
        found = explained(joint, of=name)
        assert found.of_N.tolist() == [place] * len(found.of_N)
        check_sums(found)
    refuses("--reasons-of", lambda: explained(joint, of="nobody"), "called")
    refuses("--reasons-of", lambda: explained(trained(tmp_path / "value", "value").server.joint, of="x"), "class")


def test_an_owner_without_a_row_moves_nothing_and_has_no_columns(tmp_path: Path):
    built = trained(tmp_path, gaps=4)
    joint = built.server.joint
    held = joint.masks(0, len(joint.samples.ids))["shop"].present_B
    assert 0 < held.sum() < len(held)
    found = explained(joint)
    check_sums(found)
    assert found.moved_NK[~held, 1].tolist() == [0.0] * int((~held).sum())
    assert bool(found.columns["shop"].moved_NC[~held].isnan().all())
    assert not bool(found.columns["shop"].moved_NC[held].isnan().any())
    away = explain(joint.without(["shop"]), ReasonsWanted(), "placeholder")
    assert not away.moved_NK[:, 1].any()
    assert "shop" not in away.columns


def test_ranks_are_those_of_the_amounts():
    moved = torch.tensor([[0.5, -2.0, 0.0, -1.0, 3.0], [0.0, 0.0, 0.0, 0.0, -1.0]], dtype=torch.float64)
    assert signed_ranks(moved).tolist() == [[2, -1, 0, -2, 1], [0, 0, 0, 0, -1]]


@pytest.mark.parametrize("tells", ["ranks", "itself", "nothing"])
def test_an_owner_tells_no_more_than_it_agreed_to(tmp_path: Path, tells: Any):
    built = trained(tmp_path)
    whole = explained(built.server.joint)
    kept: list[Tensor] = []
    shop = built.parties[1]
    shop.tells, shop.on_reasons = tells, lambda ids, moved, errors: kept.append(moved)
    found = explained(built.server.joint)
    torch.testing.assert_close(found.columns["bank"].moved_NC, whole.columns["bank"].moved_NC, rtol=0, atol=0)
    if tells == "nothing":
        assert "shop" not in found.columns
        assert not kept
        return
    torch.testing.assert_close(torch.cat(kept).float().double(), whole.columns["shop"].moved_NC, rtol=0, atol=0)
    own = found.columns["shop"]
    if tells == "itself":
        assert (own.names, own.moved_NC.shape[1]) == ((), 0)
    else:
        assert own.ranked
        assert torch.equal(own.moved_NC, signed_ranks(torch.cat(kept)))
        lowered = found.lowered(0, 9)
        assert all(name in whole.lowered(0, 9) for name in lowered)


def test_a_party_with_noise_explains_nothing(tmp_path: Path):
    """Points of a path hardly differ: their mean would have little of the noise."""
    found = explained(trained(tmp_path, privacy={"embeddings": {"kind": "gaussian", "strength": 0.1}}).server.joint)
    assert not found.columns
    check_sums(found)


@pytest.mark.parametrize(
    ("offer", "errors", "told"),
    [
        (ReasonsOffer(tells="amounts", columns=("a", "b")), (0.0,), torch.zeros(2, 2)),
        (ReasonsOffer(tells="amounts", columns=("a", "b")), (0.0, 0.0), torch.zeros(2, 3)),
        (ReasonsOffer(tells="amounts", columns=("a", "b")), (0.0, 0.0), torch.full((2, 2), math.nan)),
        (ReasonsOffer(tells="ranks", columns=("a", "b")), (0.0, 0.0), torch.full((2, 2), 3.0)),
        (ReasonsOffer(tells="ranks", columns=("a", "b")), (0.0, 0.0), torch.full((2, 2), 0.5)),
        (ReasonsOffer(tells="itself"), (0.0, 0.0), torch.zeros(2, 2)),
    ],
)
def test_a_hostile_reply_is_refused(offer: ReasonsOffer, errors: tuple[float, ...], told: Tensor):
    from vfl.compression.codec import encode

    frame = (
        encode(told.nan_to_num()) if not told.isnan().any() else encode(told.nan_to_num())[:-4] + b"\x00\x00\xc0\x7f"
    )
    parts = Completeness(errors=errors).part(), Part(PartKind.REASONS, frame)
    with pytest.raises((MessageError, ValueError, ArithmeticError)):
        read_told(offer, 2, Message(Kind.ATTRIBUTED, parts=parts))


@pytest.mark.parametrize(
    "spoilt", [{"steps": 257}, {"steps": 0}, {"stop": 5000}, {"stop": 0}, {"stop": 257}, {"stop": 17, "steps": 256}]
)
def test_orders_are_bounded(spoilt: dict[str, int]):
    values = {"start": 0, "stop": 4, "steps": 16} | spoilt
    with pytest.raises(ValidationError):
        Explained.model_validate(values)
    with pytest.raises(ConfigError):
        ReasonsWanted(steps=values["steps"], most=-1)


def test_a_party_refuses_slopes_of_other_samples(tmp_path: Path):
    shop = trained(tmp_path).parties[1]
    from vfl.compression.codec import encode

    for gained, rows in (((0.0,), 4), ((0.0,) * 4, 3), (None, 4)):
        asked = Explained(start=0, stop=4, steps=2, gained=gained)
        parts = asked.part(), Part(PartKind.GRADIENT, encode(torch.zeros(2 * rows, 8)))
        with pytest.raises(MessageError):
            shop.handle(Message(Kind.ATTRIBUTE, parts=parts))


def test_a_category_moves_by_its_vector_and_a_column_that_is_ignored_keeps_nothing():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vectors = nn.Embedding(5, 3)
            self.out = nn.Linear(6, 4)

        def forward(self, rows: Tensor) -> Tensor:
            read = self.vectors(rows[:, 2:].long())
            return self.out(torch.cat([read.flatten(1)], dim=1)).relu()

    torch.manual_seed(0)
    net = Net().eval()
    paths = ColumnPaths(net, lambda model, rows: model(rows), torch.tensor([0.0, 0.0, 1, 2]), 2, [[0], [1], [2], [3]])
    rows = torch.tensor([[3.0, -1.0, 4, 2], [1.0, 2.0, 0, 3]])
    slope = torch.ones(2, 16, 4)
    ends = paths.embed(rows, 16)
    gained = (ends[1:].view(2, 16, 4)[:, -1] - ends[0]).sum(dim=1).double()
    torch.testing.assert_close(ends[[16, 32]], net(rows))
    moved, _ = paths.moved(rows, slope, gained)
    torch.testing.assert_close(moved.sum(dim=1), gained, rtol=0, atol=1e-6)
    assert not moved[:, :2].any()
    assert moved[0, 3] == 0  # the reference's category
    assert moved[0, 2] != 0
    assert moved[1, 3] != 0


@pytest.fixture(scope="module")
def decisive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on rows of which one column of the shop decides."""
    folder = tmp_path_factory.mktemp("decisive")
    tables = write(folder, "decided", rows=400)
    config = small_config(**sections(tables, rounds=25))
    train_run(config, folder / "run")
    return folder / "run"


def test_a_decisive_column_comes_first(decisive: Path, tmp_path: Path):
    new = write(tmp_path, "decided", rows=100, seed=5)
    new["bank"].write_text("\n".join(line.rpartition(",")[0] for line in new["bank"].read_text().splitlines()))
    found = Run(decisive).explain(new)
    check_sums(found)
    sizes = {
        f"{owner}.{name}": own.moved_NC[:, place].abs()
        for owner, own in found.columns.items()
        for place, name in enumerate(own.names)
    }
    first = torch.stack([*sizes.values()]).argmax(dim=0)
    assert (first == [*sizes].index("shop.spent")).sum() >= 99
    spent = [float(line.split(",")[2]) for line in new["shop"].read_text().splitlines()[1:]]
    row = min(range(100), key=lambda each: spent[each])
    assert found.lowered(row, 4)[0] == "shop.spent"
    order = torch.tensor([3, 1])
    assert torch.equal(found.take(order).moved_NK, found.moved_NK[order])


def test_predicting_with_reasons_computes_scores_once_and_has_their_bits(tmp_path: Path, monkeypatch):
    joint = trained(tmp_path, gaps=5).server.joint
    plain = predict(joint, "placeholder").probabilities_NC
    asked: list[int] = []
    embeddings = JointModel.embeddings

    def counted(self: JointModel, start: int, stop: int, **more: Any) -> dict[str, Tensor]:
        asked.extend(range(start, stop))
        return embeddings(self, start, stop, **more)

    monkeypatch.setattr(JointModel, "embeddings", counted)
    found = predict(joint, "placeholder", ReasonsWanted(steps=2))
    assert torch.equal(found.probabilities_NC, plain)
    assert asked == [*range(len(plain))]
