"""Widths, ties, errors: what a pruner promises beside the mask form."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses
from shorthand import build_feature_model, examples
from torch import nn

from vfl.compression.pruning import StructuredPruner, psi
from vfl.compression.shrink import select

IMAGES = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(1))


def small(kind, width=0.1, batch_norm=True):
    return build_feature_model(
        kind, in_channels=2, image_size=(8, 8), embedding_size=4, width=width, batch_norm=batch_norm
    )


@given(
    kind=st.sampled_from(["cnn", "mlp"]),
    width=st.floats(0.01, 0.3),
    batch_norm=st.booleans(),
    round_to=st.sampled_from([None, 1, 3, 8]),
    alphas=st.lists(st.floats(0, 0.999), min_size=1, max_size=4),
)
@examples(25)
def test_widths_are_exact_after_any_sequence_of_ratios(kind, width, batch_norm, round_to, alphas):
    model = small(kind, width, batch_norm)
    pruner = StructuredPruner(model, IMAGES, round_to=round_to)
    original = pruner.original_widths
    for step, alpha in enumerate(alphas):
        before = pruner.widths()
        changed = pruner.prune_to(alpha)
        assert changed == (pruner.widths() != before)
        assert pruner.alpha_max == max(alphas[: step + 1])
        for name, kept in pruner.widths().items():
            full, share, m = original[name], 1 - pruner.alpha_max, round_to or 1
            assert kept == (full if pruner.alpha_max == 0 else min(full, max(m, m * round(share * full / m))))
    assert model(IMAGES).shape == (6, 4)


def test_ties_go_to_the_lower_index():
    first = nn.Linear(3, 6)
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(6, 2))
    nn.init.constant_(first.weight, 1.0)
    with torch.no_grad():
        first.bias.copy_(torch.arange(6))
    StructuredPruner(model, torch.zeros(1, 3)).prune_to(0.5)
    assert first.bias.tolist() == [3, 4, 5]


def test_outputs_of_the_model_stay_whole_without_being_named():
    for last in (nn.Identity(), nn.ReLU(), nn.BatchNorm1d(5)):
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5), last)
        pruner = StructuredPruner(model, torch.zeros(2, 3))
        pruner.prune_to(0.5)
        assert pruner.widths() == {"0": 4}


def test_layout_survives_where_one_channel_makes_it_ambiguous():
    weight = torch.arange(36.0).view(2, 2, 3, 3).to(memory_format=torch.channels_last)
    for _ in range(2):
        positions = torch.arange(weight.numel()).view(weight.shape)[:, -1:]
        expected = weight[:, -1:]
        weight = select(weight, positions)
        assert torch.equal(weight, expected)
        assert weight.stride() == (9, 1, 3, 1)


def test_psi_is_the_mean_squared_distance():
    assert psi(torch.tensor([[1.0, 2], [0, 0]]), torch.tensor([[0.0, 0], [3, 0]])) == (5 + 9) / 2
    refuses("psi", lambda: psi(torch.zeros(2, 3), torch.zeros(3, 3)))
    refuses("psi", lambda: psi(torch.zeros(0, 3), torch.zeros(0, 3)))


def test_refuses_wrong_arguments_and_changes_nothing():
    model = small("cnn")
    for arguments, message in [
        ({"round_to": 0}, "round_to"),
        ({"importance": "l2"}, "importance"),
    ]:
        with pytest.raises(ValueError, match=message):
            StructuredPruner(model, IMAGES, **arguments)
    pruner = StructuredPruner(model, IMAGES)
    for alpha in (-0.1, 1.0, float("nan")):
        with refused("alpha", "alpha"):
            pruner.prune_to(alpha)
    parameters = list(model.parameters())
    refuses("optimizer", lambda: pruner.prune_to(0.5, torch.optim.SGD(small("cnn").parameters())), "another")
    assert pruner.alpha_max == 0
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_warns_of_layers_that_the_output_does_not_depend_on():
    model = small("cnn")
    model.unused = nn.Linear(3, 3)
    with pytest.warns(UserWarning, match="unused"):
        StructuredPruner(model, IMAGES)
