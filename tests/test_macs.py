import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from shorthand import release
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.flop_counter import FlopCounterMode

from vfl.base.macs import count_macs, count_parameters, measure_macs


@given(
    groups=st.sampled_from([1, 2, 4]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
    side=st.integers(5, 8),
)
def test_convolution_costs_its_kernel_per_output_value(groups, kernel, stride, dilation, padding, side):
    conv = nn.Conv2d(4, 8, kernel, stride, padding, dilation, groups)
    out_side = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    assert count_macs(conv, torch.zeros(1, 4, side, side)) == out_side**2 * 8 * (4 // groups) * kernel**2


def test_trap_8_normalization_activation_bias_and_pooling_cost_nothing():
    bare = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.Flatten(), nn.Linear(5 * 36, 4, bias=False))
    dressed = nn.Sequential(
        nn.Conv2d(3, 5, 3),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.MaxPool2d(1),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(5 * 36, 4),
    )
    images = torch.zeros(1, 3, 8, 8)
    assert count_macs(bare, images) == count_macs(dressed, images) == 36 * 5 * 27 + 180 * 4


@given(
    kind=st.sampled_from([nn.RNN, nn.LSTM, nn.GRU]),
    layers=st.integers(1, 2),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    steps=st.integers(1, 6),
    batch=st.integers(1, 3),
)
@pytest.mark.release
def test_a_recurrent_layer_costs_its_matrices_at_every_step(kind, layers, bidirectional, bias, steps, batch):
    inputs, hidden = 4, 5
    layer = kind(inputs, hidden, layers, bias=bias, bidirectional=bidirectional, batch_first=True)
    sequence = torch.zeros(batch, steps, inputs)
    gates = {nn.RNN: 1, nn.LSTM: 4, nn.GRU: 3}[kind]
    directions = 2 if bidirectional else 1
    widths = [inputs, *[directions * hidden] * (layers - 1)]
    per_step = sum(directions * gates * hidden * (width + hidden) for width in widths)
    assert count_macs(layer, sequence) == steps * per_step
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer.to("meta")(sequence[:1].to("meta"))  # where it is taken apart into matrix products
    assert counter.get_total_flops() == 2 * steps * per_step


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # PyTorch says which kernel it takes
def test_a_recurrent_cell_and_a_projection_count_as_well():
    assert count_macs(nn.LSTMCell(3, 5), torch.zeros(2, 3)) == 4 * 5 * (3 + 5)
    projected = nn.LSTM(3, 5, proj_size=2, batch_first=True)
    assert count_macs(projected, torch.zeros(1, 7, 3)) == 7 * (4 * 5 * (3 + 2) + 2 * 5)


def test_one_sample_is_counted_whatever_the_batch():
    assert count_macs(nn.Linear(3, 5), torch.zeros(7, 3)) == 15
    assert count_macs(nn.Linear(3, 5), torch.zeros(7, 2, 3)) == 2 * 15


def test_a_layer_called_twice_counts_twice():
    layer = nn.Linear(3, 3)
    assert count_macs(nn.Sequential(layer, layer), torch.zeros(1, 3)) == 18


def test_the_model_is_as_before():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Dropout(0.5)).train()
    model[1].eval()
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    random_state = torch.get_rng_state()
    count_macs(model, torch.ones(2, 1, 3, 3))
    assert [m.training for m in model] == [True, False, True]
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not any(m._forward_hooks for m in model.modules())


def test_hooks_and_modes_are_restored_after_a_failure():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2))
    with pytest.raises(RuntimeError):
        count_macs(model, torch.zeros(1, 3))
    assert model.training
    assert not any(m._forward_hooks for m in model.modules())


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 3, batch_first=True)

    def forward(self, sequences):
        return self.lstm(pack_padded_sequence(sequences, [sequences.shape[1]], batch_first=True))


def test_a_packed_sequence_costs_its_own_steps_alone():
    assert count_macs(Packed(), torch.zeros(1, 4, 2)) == 4 * 4 * 3 * (2 + 3)


def test_refuses_an_empty_batch():
    refuses("example_inputs", lambda: count_macs(nn.Linear(2, 3), torch.zeros(0, 2)), "least")


def test_frozen_and_shared_parameters_count_once_buffers_never():
    layer = nn.Linear(3, 3)
    layer.bias.requires_grad_(False)
    assert count_parameters(nn.Sequential(layer, layer, nn.BatchNorm1d(3))) == 12 + 6


def attention(steps: int, width: int, keys: int | None = None) -> int:
    """Four projections, scores and mixture."""
    keys = steps if keys is None else keys
    return 2 * steps * width**2 + 2 * keys * width**2 + 2 * steps * keys * width


class Attending(nn.Module):
    def __init__(self, *, need_weights: bool, **options):
        super().__init__()
        self.attention, self.need_weights = nn.MultiheadAttention(8, 2, **options), need_weights

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 8, "vdim": 8}])
def test_attention_costs_its_projections_scores_and_mixture_in_every_mode(need_weights, options):
    model, tokens = Attending(need_weights=need_weights, batch_first=True, **options), torch.randn(3, 5, 8)
    for frozen in (False, True):  # in evaluation mode PyTorch would take its fused kernel
        model.eval().requires_grad_(not frozen)
        before = model(tokens)
        assert count_macs(model, tokens) == attention(5, 8)
        assert torch.equal(before, model(tokens))


def test_a_transformer_encoder_costs_its_attention_and_its_perceptrons():
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval().requires_grad_(False)
    assert count_macs(encoder, torch.randn(2, 5, 8)) == 3 * (attention(5, 8) + 2 * 5 * 8 * 16)


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), (4, 7), 4 * 7 * 6 * 3),
        (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), (4, 5, 5), 4 * 25 * 3 * 9),
        (lambda: nn.utils.weight_norm(nn.Linear(4, 6)), (4,), 24),
        (lambda: nn.utils.spectral_norm(nn.Linear(4, 6)), (4,), 24),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), (4,), 24),
        (lambda: prune.l1_unstructured(nn.Linear(4, 6), "weight", 0.5), (4,), 24),
    ],
)
@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_layers_of_every_kind_cost_their_closed_form(layer, shape, expected):
    assert count_macs(layer(), torch.randn(2, *shape)) == expected


@pytest.mark.parametrize(
    "compile_it", [lambda m: torch.compile(m, backend="eager"), release(lambda m: m.compile() or m)]
)
def test_a_compiled_model_costs_what_it_costs_uncompiled(compile_it):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    for model in (compile_it(inner), nn.Sequential(compile_it(inner))):
        assert count_macs(model, torch.randn(2, 4)) == 42


@torch.library.custom_op("vfl_test::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return doubled(self.layer(x))


def test_what_nobody_can_count_is_named_and_the_rest_is_counted():
    measured = measure_macs(Foreign(), torch.randn(1, 3))
    assert measured.layers == {"layer": 6}
    assert measured.uncounted == {"vfl_test.doubled"}


def test_matrix_products_outside_of_layers_count():
    class Mixed(nn.Module):
        def forward(self, x):
            return torch.einsum("bij,bkj->bik", x, x) @ x

    assert count_macs(Mixed(), torch.randn(2, 5, 3)) == 2 * 5 * 5 * 3
