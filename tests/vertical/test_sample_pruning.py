"""Sample pruning: exact in the mean, ended in time, and no more than what was agreed."""

import pytest
import torch

from vfl.config import TrainingConfig, parse_config
from vfl.vertical.sample_pruning import LastLosses, SamplePruning, easy_part, nothing_easy
from vfl.vertical.tasks import Classification, Regression, Task
from vfl.wire.messages import Kind, Message, MessageError

ROWS = torch.arange(12)
EASY = torch.tensor([True, False] * 6)
ROUNDS = 4000


@pytest.mark.parametrize("task", [Classification(3), Classification(3, (1.0, 5.0, 0.2)), Regression(1.0, 2.0)])
def test_in_the_mean_over_the_draws_the_gradient_is_that_of_the_whole_batch(task: Task):
    stream = torch.Generator().manual_seed(0)
    outputs_BC = torch.randn(len(ROWS), task.outputs, generator=stream)
    labels_B = torch.randint(0, 3, (len(ROWS),), generator=stream)
    labels_B = labels_B.float() if isinstance(task, Regression) else labels_B
    pruning = SamplePruning(0.75, seed=1)
    drawn = [pruning.of_round(each, [EASY])[0] for each in range(ROUNDS)]
    summed_B = torch.zeros(len(ROWS))
    for left in drawn:
        weights_n = left.targets(task, labels_B).weights_B
        assert weights_n is not None
        summed_B[left.share.present_B] += weights_n
    assert torch.stack([left.share.present_B for left in drawn]).float().mean(0)[EASY].mean() == pytest.approx(
        0.25, abs=0.02
    )
    assert all(left.share.present_B[~EASY].all() for left in drawn)
    gradients: list[torch.Tensor] = []
    for weigh in (task.loss, lambda outputs, labels: (summed_B / ROUNDS * task.losses(outputs, labels)).sum()):
        leaf_BC = outputs_BC.clone().requires_grad_()
        gradients.append(torch.autograd.grad(weigh(leaf_BC, labels_B), leaf_BC)[0])
    # A weight's standard deviation is sqrt(r / (1 - r)) = 1.7 of its mean.
    torch.testing.assert_close(gradients[1], gradients[0], rtol=5 * 1.74 / ROUNDS**0.5, atol=1e-7)
    torch.testing.assert_close(gradients[1][~EASY], gradients[0][~EASY])


@pytest.mark.parametrize("task", [Classification(3), Classification(3, (1.0, 5.0, 0.2)), Regression(1.0, 2.0)])
@pytest.mark.parametrize("members", [(), (2,)])
def test_a_batch_of_which_all_is_left_out_has_no_losses_and_no_gradient(task: Task, members: tuple[int, ...]):
    outputs_BC = torch.zeros(0, *members, task.outputs, requires_grad=True)
    losses_B = task.losses(outputs_BC, torch.zeros(0, dtype=torch.long))
    assert losses_B.shape == (0,)
    (gradient,) = torch.autograd.grad(losses_B.sum(), outputs_BC)
    assert gradient.shape == outputs_BC.shape


def test_samples_are_easy_below_the_mean_of_the_last_losses_until_the_last_rounds():
    training = TrainingConfig.model_validate({"rounds": 8, "sample_pruning": {"share": 0.5, "until": 0.75}})
    last = LastLosses(training, len(ROWS))
    assert not last.easy(0, [ROWS])[0].any(), "nothing is known yet"
    last.note(ROWS[:4], torch.tensor([1.0, 2.0, 3.0, 10.0]))
    last.note(ROWS[2:3], torch.tensor([4.0]))  # the mean is 4.25 now
    (easy_B,) = last.easy(5, [ROWS])
    assert easy_B.nonzero().flatten().tolist() == [0, 1, 2], "who was never trained on is not easy"
    assert not last.easy(6, [ROWS])[0].any(), "the last quarter of 8 rounds"
    resumed = LastLosses(training, len(ROWS))
    resumed.load_state_dict(last.state_dict())
    assert torch.equal(resumed.easy(5, [ROWS])[0], easy_B)
    assert resumed.trained == 5
    assert LastLosses(TrainingConfig(), len(ROWS)).state_dict() == {}


@pytest.mark.parametrize("pruning", [SamplePruning(0.0, 3), SamplePruning(0.6, 3)])
def test_what_is_left_is_read_as_it_was_drawn_and_no_more_than_agreed(pruning: SamplePruning):
    batches, easy = [ROWS, ROWS + 12], [EASY, ~EASY]

    def order(*parts):
        return Message(Kind.START_ROUND, 2, 0, parts)

    whole = pruning.read(order(*easy_part(nothing_easy(batches))), batches)
    assert all(left.share.whole for left in whole)
    if not pruning.share:
        with pytest.raises(MessageError, match="samples are left out 1 times, 0 agreed"):
            pruning.read(order(*easy_part(easy)), batches)
        return
    for read, drawn in zip(pruning.read(order(*easy_part(easy)), batches), pruning.of_round(2, easy), strict=True):
        assert torch.equal(read.share.present_B, drawn.share.present_B)
        assert read.weights_n is not None
        assert drawn.weights_n is not None
        assert torch.equal(read.weights_n, drawn.weights_n)
    with pytest.raises(MessageError, match="samples are left out 2 times, 1 agreed"):
        pruning.read(order(*easy_part(easy), *easy_part(easy)), batches)


def test_easy_rows_are_not_told_where_gradients_are_to_hide_them():
    values = {"name": "told", "privacy": {"gradients": "max_norm"}}
    values["training"] = {"labels": "server", "sample_pruning": {"share": 0.5}}
    with pytest.raises(ValueError, match=r"training\.sample_pruning\.share: tells .* leave one of the two out"):
        parse_config(values)
