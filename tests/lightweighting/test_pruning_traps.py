"""Traps around a pruning event, one test each (the eighth, multiply-accumulates, is in test_macs.py)."""

import copy
import json
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses
from shorthand import build_feature_model, examples
from torch import nn

from vfl.base.macs import count_macs
from vfl.compression.pruning import StructuredPruner, psi
from vfl.compression.shrink import select

BATCHES = torch.randn(8, 6, 2, 8, 8, generator=torch.Generator().manual_seed(1))


def small(kind="cnn", width=0.1, batch_norm=True):
    return build_feature_model(
        kind, in_channels=2, image_size=(8, 8), embedding_size=4, width=width, batch_norm=batch_norm
    )


def linear_of(width):
    return nn.Sequential(
        OrderedDict(hidden=nn.Linear(4, width), relu=nn.ReLU(), embedding=nn.Linear(width, 2)),
    )


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def train(model, optimizer, batches):
    for images in batches:
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()


def test_trap_1_every_module_keeps_its_own_mode():
    model = small().train()
    first_norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    first_norm.eval()
    before = [m.training for m in model.modules()]
    StructuredPruner(model, BATCHES[0]).prune_to(0.3)
    assert [m.training for m in model.modules()] == before


def test_trap_1_tracing_moves_neither_statistics_nor_random_state_nor_weights():
    model = nn.Sequential(OrderedDict(drop=nn.Dropout(), body=small(), embedding=nn.Linear(4, 3))).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()
    pruner = StructuredPruner(model, BATCHES[0])
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    pruner.prune_to(0.3)
    assert torch.equal(torch.get_rng_state(), random_state)
    left = model.state_dict()["body.features.1.running_var"]
    assert len(left) < 3
    assert set(left.tolist()) <= set(before["body.features.1.running_var"].tolist())


def test_trap_2_the_optimizer_trains_the_pruned_parameters_in_its_groups():
    model = small()
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.SGD([{"params": others, "lr": 0.01}, {"params": weights}], lr=0.05, momentum=0.9)
    train(model, optimizer, BATCHES[:2])
    StructuredPruner(model, BATCHES[0]).prune_to(0.3, optimizer)
    assert all(p.grad is None for p in model.parameters())
    bound = [p for group in optimizer.param_groups for p in group["params"]]
    assert [id(p) for p in bound[: len(others)]] == [id(p) for p in model.parameters() if p.dim() == 1]
    assert {id(p) for p in bound} == {id(p) for p in model.parameters()} == {id(p) for p in optimizer.state}
    assert all(optimizer.state[p]["momentum_buffer"].shape == p.shape for p in bound)
    before = [p.clone() for p in model.parameters()]
    train(model, optimizer, BATCHES[2:3])
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_trap_2_momentum_follows_the_kept_indices():
    model = linear_of(6)
    optimizer = sgd(model)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.arange(parameter.numel()).float().view_as(parameter)
    weight = model.get_parameter("hidden.weight")
    nn.init.constant_(weight, 1.0)
    with torch.no_grad():
        weight[[0, 3, 4]] = 0.1
    StructuredPruner(model, torch.zeros(1, 4)).prune_to(0.5, optimizer)
    momentum = {n: optimizer.state[p]["momentum_buffer"].tolist() for n, p in model.named_parameters()}
    assert momentum["hidden.bias"] == [1, 2, 5]
    assert momentum["hidden.weight"] == [[4, 5, 6, 7], [8, 9, 10, 11], [20, 21, 22, 23]]
    assert momentum["embedding.weight"] == [[1, 2, 5], [7, 8, 11]]


def test_trap_2_state_that_cannot_be_carried_is_refused_before_anything_changes():
    model = linear_of(6)
    optimizer = sgd(model)
    optimizer.state[model.get_parameter("hidden.weight")]["row_norms"] = torch.zeros(6)
    pruner = StructuredPruner(model, torch.zeros(1, 4))
    refuses("optimizer", lambda: pruner.prune_to(0.5, optimizer), "row_norms")
    assert pruner.widths() == {"hidden": 6}
    assert (pruner.alpha_max, pruner.state_dict()["history"]) == (0, [])


@pytest.mark.parametrize("frozen", ["features.0.weight", "features.4.weight", ""])
def test_trap_3_frozen_layers_are_pruned_and_stay_frozen(frozen):
    model = small()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    before = [p.requires_grad for p in model.parameters()]
    pruner = StructuredPruner(model, BATCHES[0])
    with torch.no_grad():
        pruner.prune_to(0.5)
    assert list(pruner.widths().values()) == [2, 3, 6]
    assert [p.requires_grad for p in model.parameters()] == before


def test_trap_4_ratios_do_not_compound():
    widths = []
    for ratios in ([0.75], [0.25, 0.5, 0.75], [0.25, 0.1, 0.75, 0.75, 0.2]):
        pruner = StructuredPruner(model := small("vgg11", 0.3), BATCHES[0])
        outcomes = [pruner.prune_to(alpha) for alpha in ratios]
        assert outcomes == [alpha > max(ratios[:i], default=0) for i, alpha in enumerate(ratios)]
        assert pruner.alpha_max == 0.75
        widths.append([p.shape for p in model.parameters()])
    assert widths[0] == widths[1] == widths[2]


@pytest.mark.parametrize(
    ("width", "alpha", "round_to", "kept"),
    [
        (120, 0.9, None, 12),
        (3, 0.999, None, 1),
        (64, 0.99, 8, 8),
        (64, 0.5, 12, 36),
        (5, 0.2, 8, 5),
        (10, 0.01, 8, 8),
        (10, 0.01, None, 10),
    ],
)
def test_trap_5_widths_are_rounded_to_nearest_and_never_to_zero(width, alpha, round_to, kept):
    model = linear_of(width)
    pruner = StructuredPruner(model, torch.zeros(1, 4), round_to=round_to)
    assert pruner.prune_to(alpha) == (kept != width)
    assert pruner.widths() == {"hidden": kept}
    assert count_macs(model, torch.zeros(1, 4)) == kept * (4 + 2)


@pytest.mark.parametrize(("importance", "kept"), [("filter", [2, 3]), ("group", [0, 1])])
def test_trap_6_the_filter_norm_sees_neither_normalization_nor_the_next_layer(importance, kept):
    model = nn.Sequential(
        OrderedDict(hidden=nn.Linear(1, 4), norm=nn.BatchNorm1d(4), embedding=nn.Linear(4, 2)),
    )
    for name, values in {
        "hidden.weight": [[1.0], [2.0], [3.0], [4.0]],
        "norm.weight": [9.0, 9.0, 1.0, 1.0],
        "hidden.bias": [0.0, 1.0, 2.0, 3.0],
    }.items():
        model.get_parameter(name).data = torch.tensor(values)
    StructuredPruner(model, torch.zeros(2, 1), importance=importance).prune_to(0.5)
    assert model.get_parameter("hidden.bias").tolist() == kept


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("importance", ["filter", "group"])
def test_trap_7_a_reloaded_model_goes_on_bit_for_bit(layout, importance):
    def fresh(seed):
        torch.manual_seed(seed)
        model = small("vgg11", 0.08).to(memory_format=layout)
        return model, sgd(model), StructuredPruner(model, BATCHES[0], importance=importance)

    def go_on(model, optimizer, pruner):
        train(model, optimizer, BATCHES[4:6])
        pruner.prune_to(0.6, optimizer)
        train(model, optimizer, BATCHES[6:])

    model, optimizer, pruner = fresh(0)
    for alpha, batch in ((0.2, 0), (0.4, 1)):
        train(model, optimizer, BATCHES[batch : batch + 2])
        pruner.prune_to(alpha, optimizer)
    train(model, optimizer, BATCHES[3:4])
    saved = json.dumps(pruner.state_dict())
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other, other_optimizer, other_pruner = fresh(1)
    with pytest.raises(RuntimeError, match="size mismatch"):
        other.load_state_dict(weights)
    other_pruner.load_state_dict(json.loads(saved), other_optimizer)
    other.load_state_dict(weights, strict=True)
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the buffers

    go_on(model, optimizer, pruner)
    go_on(other, other_optimizer, other_pruner)
    assert other_pruner.state_dict() == pruner.state_dict()
    _, _, at_once = fresh(1)
    at_once.prune_to(0.6)
    assert other_pruner.widths() == pruner.widths() == at_once.widths()
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
        assert a.stride() == b.stride(), name
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(optimizer.state[a]["momentum_buffer"], other_optimizer.state[b]["momentum_buffer"])
        assert a.dim() != 4 or a.is_contiguous(memory_format=layout)


def test_trap_7_states_of_other_models_are_refused_before_anything_changes():
    dense = {"alpha_max": 0.5, "history": []}
    bad = [
        {},
        {"alpha_max": 0.5, "history": [3]},
        {"alpha_max": 1.5, "history": []},
        {"alpha_max": float("nan"), "history": []},
        *(
            dense | {"history": [{"alpha": 0.5, "removed": removed}]}
            for removed in (
                {"other": [0]},
                {"hidden": [6]},
                {"hidden": [-1]},
                {"hidden": [1, 1]},
                {"hidden": [*range(6)]},
            )
        ),
        dense | {"history": [{"alpha": 0.2, "removed": {"hidden": [0]}}, {"alpha": 0.5, "removed": {"hidden": [5]}}]},
    ]
    model = linear_of(6)
    pruner = StructuredPruner(model, torch.zeros(1, 4))
    for state in bad:
        with refused("pruning state", "pruning"):
            pruner.load_state_dict(state)
    assert (pruner.alpha_max, pruner.widths()) == (0, {"hidden": 6})
    pruner.load_state_dict(dense)
    assert not pruner.prune_to(0.5)
    refuses("pruning state", lambda: pruner.load_state_dict(dense), "newly")


IMAGES = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(1))


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
