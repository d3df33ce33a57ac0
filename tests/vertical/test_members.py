"""Several models trained side by side: each as if it were alone, and predictions that are the means of theirs."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from shorthand import build_here
from tiny_training import check_resumed_run
from torch import nn

from vfl.core.feature_models import check_feature_model
from vfl.core.local import InProcess
from vfl.core.tasks import Classification, Regression
from vfl.data.samples import Samples
from vfl.data.tables.preparation import TablePreparation
from vfl.models.features import Features, ModelSpec, TableFeatures
from vfl.models.table import MemberModels, TableMLP, mlp
from vfl.predict.export_run import Scores

BOTH = TableFeatures("table", (6,), (5, 3), (16, 1), both=True)
ROWS = torch.tensor([[-0.3, 1.0, 7.5, 1.0, 2, 0], [1.2, 0.0, 15.0, 0.0, 0, 1], [0.1, 0.0, 9.0, 0.0, 4, 2]])
TASKS = (Classification(3), Classification(3, (1.0, 2.0, 0.5)), Regression(5.0, 2.0))


@given(data=st.data(), task=st.sampled_from(TASKS), members=st.integers(1, 4), samples=st.integers(1, 5))
def test_every_member_has_its_own_loss_and_predictions_are_their_means(data, task, members, samples):
    torch.manual_seed(data.draw(st.integers(0, 99)))
    outputs = torch.randn(samples, members, task.outputs) * 3
    values = isinstance(task, Regression)
    labels = torch.randn(samples) if values else torch.randint(3, (samples,))
    alone = outputs.unbind(1)
    torch.testing.assert_close(
        task.loss(outputs, labels), torch.stack([task.loss(each, labels) for each in alone]).mean()
    )
    mean = torch.stack([task.predictions(each) for each in alone]).mean(0)
    torch.testing.assert_close(task.predictions(outputs), mean, rtol=1e-5, atol=1e-6)
    expected = (((mean[:, 0] - labels) / 2) ** 2).sum() if values else F.nll_loss(mean.log(), labels, reduction="sum")
    assert task.test_loss(outputs, labels) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)
    scores = Scores(nn.Identity(), task)(outputs)
    torch.testing.assert_close(task.predictions(scores), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.release
def test_members_read_either_form_of_the_numbers_and_are_pruned():
    torch.manual_seed(0)
    model = mlp(ModelSpec(BOTH, 8, width=0.2, members=4))
    assert isinstance(model, MemberModels)
    forms = [torch.cat([ROWS[:, :2], ROWS[:, 4:]], 1), ROWS[:, 2:]]
    model.eval()
    alone = [member(forms[place % 2]) for place, member in enumerate(model.members)]
    assert torch.equal(model(ROWS), torch.cat(alone, 1))
    check_feature_model(mlp(ModelSpec(BOTH, 8, width=0.2, members=4)), ROWS)
    images = mlp(ModelSpec(Features("images", (1, 2, 2)), 8, members=2))
    assert images(torch.zeros(3, 1, 2, 2)).shape == (3, 8)
    with pytest.raises(ValueError, match=r"data\.numbers: both needs models\.members"):
        TableMLP(ModelSpec(BOTH, 8))


def test_both_forms_of_the_numbers_stand_side_by_side():
    numbers = torch.tensor([[1.0, torch.nan], [2.0, 5.0], [4.0, 7.0]]).double()
    train = Samples(torch.arange(3), numbers, more=(torch.tensor([[1], [1], [2]]),))
    both = TablePreparation(train, "both")
    forms = [TablePreparation(train, form).apply(train).features for form in ("standardised", "quantiles")]  # pyright: ignore
    assert torch.equal(both.apply(train).features, torch.cat([forms[0][:, :3], forms[1]], 1))
    restored = TablePreparation(Samples(torch.arange(3), numbers * 9, more=train.more), "both")
    restored.load_state_dict(both.state_dict())
    assert torch.equal(restored.apply(train).features, both.apply(train).features)


def settings(**more: Any) -> dict[str, Any]:
    """Return two owners of the breast cancer table with two members each."""
    values: dict[str, Any] = {
        "name": "members",
        "threads": 1,
        "data": {"dataset": {"kind": "breast_cancer"}, "numbers": "both"},
        "models": {"feature": {"embedding_size": 8, "width": 0.1}, "head": {"hidden": [4]}, "members": 2},
        "training": {"rounds": 2, "batch_size": 32, "labels": "server"},
    }
    return values | more


def built(numbers: str, members: int, rate: float) -> InProcess:
    values = settings(data={"dataset": {"kind": "breast_cancer"}, "numbers": numbers})
    values["models"] |= {"members": members, "feature": {"embedding_size": 4 * members, "width": 0.1}}
    values["training"] |= {"optimizer": {"learning_rate": rate, "momentum": 0.9, "weight_decay": 0.0}}
    return build_here(values)


def test_members_learn_as_if_each_were_alone():
    """By SGD at twice the learning rate, as the loss is the mean of two."""
    together = built("both", 2, 0.02)
    lone = [built(numbers, 1, 0.01) for numbers in ("standardised", "quantiles")]

    def pairs(member: int):
        models = [each.model for each in together.parties] + [together.server.trainer.head]
        own = [each.model for each in lone[member].parties] + [lone[member].server.trainer.head]
        return [(one, cast(Any, whole).members[member]) for one, whole in zip(own, models, strict=True)]

    for member in range(2):
        for one, within in pairs(member):
            one.load_state_dict(within.state_dict())
    for each in (together, *lone):
        each.server.train_round(0)
    for member in range(2):
        for one, within in pairs(member):
            torch.testing.assert_close(one.state_dict(), within.state_dict(), rtol=1e-3, atol=1e-5)


def test_a_run_of_members_is_resumed_to_the_same_bits(tmp_path: Path):
    check_resumed_run(settings(), tmp_path)
