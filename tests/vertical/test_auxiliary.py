"""training.auxiliary: each party's own classifier beside the head, against its closed form and against itself."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from shorthand import TWO, build_here, examples, parties_of
from tiny_training import train_run
from torch import Tensor, nn
from two_tables import ROWS, lay_tables

from vfl.config import OptimizerConfig, parse_config
from vfl.core.head import HeadTrainer
from vfl.core.tasks import Classification, Regression, Task
from vfl.models.auxiliary import AuxiliaryHead, join_weights, split_weights
from vfl.models.mlp import MLP, MemberHeads, PlaceholderMLP
from vfl.predict.predict import with_replacements
from vfl.runs.runtime import Runtime

WIDTHS = (4, 6)
TASKS: tuple[Task, ...] = (Classification(3), Classification(3, (1.0, 2.0, 0.5), smoothing=0.2), Regression(5.0, 2.0))


def own_loss_gradient(task: Task, answer_BC: Tensor, labels_B: Tensor, weights_B: Tensor) -> Tensor:
    """Return the gradient of one classifier's mean loss at its answer, by its formula: no autograd."""
    if isinstance(task, Regression):
        return (2 * weights_B * (answer_BC[:, 0] - (labels_B - task.mean) / task.std) / weights_B.sum())[:, None]
    classes = task.classes
    by_class = answer_BC.new_tensor(task.weights or (1.0,) * classes)
    wanted_BC = (1 - task.smoothing) * torch.eye(classes, dtype=answer_BC.dtype)[labels_B] + task.smoothing / classes
    wanted_BC = wanted_BC * by_class
    residual_BC = wanted_BC.sum(1, keepdim=True) * answer_BC.softmax(1) - wanted_BC
    return weights_B[:, None] * residual_BC / (weights_B * by_class[labels_B]).sum()


@given(
    task=st.sampled_from(TASKS),
    members=st.sampled_from([1, 2]),
    rows=st.integers(1, 7),
    weighted=st.booleans(),
    gaps=st.booleans(),
    seed=st.integers(0, 999),
)
@examples(200)
def test_the_gradient_at_each_embedding_is_the_closed_form(
    task: Task, members: int, rows: int, weighted: bool, gaps: bool, seed: int
):
    torch.manual_seed(seed)
    kind = PlaceholderMLP if gaps else MLP
    heads = [kind(sum(WIDTHS) // members, [5], task.outputs) for _ in range(members)]
    joint = heads[0] if members == 1 else MemberHeads(heads, WIDTHS)
    head = AuxiliaryHead(joint, WIDTHS, task.outputs, members).double()
    trainers = [
        HeadTrainer(
            copy.deepcopy(each), task, OptimizerConfig(), Runtime(torch.device("cpu"), None, False), None, None, w
        )
        for each, w in ((head, 0.7), (head.joint, 0.0))
    ]
    labels_B = torch.randn(rows).double() if isinstance(task, Regression) else torch.randint(3, (rows,))
    weights_B = torch.rand(rows).double() + 0.1 if weighted else None
    embeddings = [torch.randn(rows, width).double() for width in WIDTHS]
    here_B = torch.rand(rows) < 0.6 if gaps else torch.ones(rows, dtype=torch.bool)
    embeddings[1][~here_B] = torch.nan
    representation_BP = torch.cat(embeddings, 1).requires_grad_()
    both, only = (
        torch.autograd.grad(trainer.losses(representation_BP, labels_B, weights_B)[1], representation_BP)[0]
        for trainer in trainers
    )
    expected_BP = only.clone()
    columns_of = torch.split(torch.arange(sum(WIDTHS)), list(WIDTHS))
    presence = torch.ones(rows, dtype=torch.bool), here_B
    for party, (present_B, columns) in enumerate(zip(presence, columns_of, strict=True)):
        if not present_B.any():
            continue
        w_n = (torch.ones(rows).double() if weights_B is None else weights_B)[present_B]
        part, classifier = torch.split(columns, len(columns) // members), head.classifiers[party]
        linears = [each for each in classifier.modules() if isinstance(each, nn.Linear)]
        for columns_m, linear in zip(part, linears, strict=True):
            answer = linear(representation_BP.detach()[present_B][:, columns_m])
            gradient = own_loss_gradient(task, answer, labels_B[present_B], w_n) @ linear.weight
            block = expected_BP[present_B]
            block[:, columns_m] += 0.7 * gradient / members
            expected_BP[present_B] = block
    tolerance = 1e-6 if isinstance(task, Regression) else 1e-12  # targets of amounts are float32
    torch.testing.assert_close(both, expected_BP.detach(), rtol=tolerance, atol=tolerance)
    assert both[:, WIDTHS[0] :][~here_B].eq(0).all(), "what is missing has no gradient"


@pytest.mark.parametrize("labels", ["shared", "server"])
def test_its_bytes_are_the_classifiers_with_shared_labels_and_none_at_the_server(build, labels: str):
    costs, heads = [], []
    for auxiliary in (0.0, 1.0):
        server = build(data=TWO, training={"labels": labels, "auxiliary": auxiliary})  # dense: reports of equal length
        server.train_round(0)
        costs.append({name: server.ledger.summary(name) for name in server.roster.names})
        heads.append(sum(part.size for part in server.trainer.parts()))
    more = heads[1] - heads[0] if labels == "shared" else 0
    for name in costs[0]:
        assert costs[1][name]["uplink_bytes"] == costs[0][name]["uplink_bytes"]
        assert costs[1][name]["downlink_bytes"] == costs[0][name]["downlink_bytes"] + more


@pytest.mark.filterwarnings("ignore:data.tables")
@pytest.mark.parametrize("own", [{}, {"models": {"members": 2}}, {"task": "regression"}, {"data": {"join": "left"}}])
def test_what_each_owner_knows_alone_is_its_classifiers_answer(tmp_path: Path, own: dict[str, Any]):
    config = parse_config(lay_tables(tmp_path, range(ROWS), own | {"training": {"auxiliary": 1.0, "rounds": 1}}))
    if "data" in own:
        shop = tmp_path / "shop.csv"
        heading, *lines = shop.read_text().splitlines()
        shop.write_text("\n".join([heading, *lines[::2]]))
    joint = build_here(config)
    server = joint.server
    server.train_round(0)
    metrics = server.evaluate()
    present_MK, task = server.joint.samples.present, server.trainer.task
    labels_M = server.joint.samples.values
    for place, party in enumerate(parties_of(server)):
        here_M = torch.ones(len(labels_M), dtype=torch.bool) if present_MK is None else present_MK[:, place]
        embedding = party.evaluated.embed("finished", party.batch(party.test, here_M.nonzero()[:, 0]), 0.0)
        classifier = server.trainer.head.get_submodule(f"classifiers.{place}")
        with torch.inference_mode():
            predictions = task.predictions(classifier(embedding))
        expected = task.metrics(predictions, labels_M[here_M])[task.metric]
        assert metrics[f"{task.metric}_alone/{party.name}"] == pytest.approx(expected, abs=1e-6)
    assert (present_MK is not None) == ("data" in own)


@pytest.mark.filterwarnings("ignore:data.tables")
def test_an_owner_whose_rows_have_one_class_only_stops_nobody(tmp_path: Path):
    """Its AUC is undefined."""
    training = {"auxiliary": 1.0, "rounds": 1}
    sections = lay_tables(tmp_path, range(ROWS), {"data": {"join": "left"}, "training": training})
    bank, shop = tmp_path / "bank.csv", tmp_path / "shop.csv"
    late = {line.split(",")[0] for line in bank.read_text().splitlines() if line.endswith(",1")}
    heading, *lines = shop.read_text().splitlines()
    shop.write_text("\n".join([heading, *(line for line in lines if line.split(",")[0] in late)]))
    for metric in ("auc", "accuracy"):
        alone = train_run(sections | {"evaluation": {"metric": metric}}, tmp_path / metric)["alone"]
        assert set(alone) == ({"bank"} if metric == "auc" else {"bank", "shop"})
        assert all(math.isfinite(value) for metrics in alone.values() for value in metrics.values())


def test_weights_by_name_go_with_a_head_and_without_it():
    head = MLP(4, [3], 2)
    both = AuxiliaryHead(head, [2, 2], 2)
    joint, classifiers = split_weights(both.state_dict())
    assert joint.keys() == head.state_dict().keys()
    assert join_weights(joint, classifiers).keys() == both.state_dict().keys()
    alone, none = split_weights(head.state_dict())
    assert (alone.keys(), none) == (head.state_dict().keys(), {})


@pytest.mark.parametrize("own", [{}, {"models": {"members": 2}}, {"task": "regression"}])
def test_owners_that_are_there_answer_by_their_own_classifiers(tmp_path: Path, own: dict[str, Any]):
    sections = lay_tables(tmp_path, range(ROWS), own | {"training": {"auxiliary": 1.0, "rounds": 1}})
    config = parse_config(sections)
    joint = build_here(config).joint
    values = with_replacements(joint, ["shop"], "own").predictions()
    start, stop = next(joint.batches())
    answer, _ = joint.own_answers(joint.embeddings(start, stop))[0]
    torch.testing.assert_close(values[: stop - start], joint.task.predictions(answer))
    assert with_replacements(joint, [], "own").predictions().equal(joint.predictions()), "nobody is away"
    config = parse_config(sections | {"training": sections["training"] | {"auxiliary": 0}})
    with refused("--when-absent", "--when-absent"):
        with_replacements(build_here(config).joint, ["shop"], "own")


class Sum(nn.Module):
    """A head of a user, which knows no placeholders."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, representation_BP: Tensor) -> Tensor:
        """Return [B, 2]."""
        return self.scale * sum(representation_BP.split(2, dim=1))


def test_a_head_without_placeholders_reads_zeros_where_an_embedding_is_missing():
    both = AuxiliaryHead(Sum(), [2, 2], 2)
    full = torch.randn(3, 4)
    gap = full.clone()
    gap[1, :2] = torch.nan
    expected = full.clone()
    expected[1, :2] = 0
    assert both(gap).equal(both(expected))
    assert both.own_answers(gap)[0][1].tolist() == [True, False, True]
