import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.flop_counter import FlopCounterMode

from vfl.base.macs import count_macs, count_parameters


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


def test_refuses_what_it_would_count_wrongly():
    with pytest.raises(ValueError, match="MultiheadAttention"):
        count_macs(nn.MultiheadAttention(2, 1), torch.zeros(1, 4, 2))
    with pytest.raises(ValueError, match="packed sequence"):
        count_macs(Packed(), torch.zeros(1, 4, 2))
    with pytest.raises(ValueError, match="at least one sample"):
        count_macs(nn.Linear(2, 3), torch.zeros(0, 2))


def test_frozen_and_shared_parameters_count_once_buffers_never():
    layer = nn.Linear(3, 3)
    layer.bias.requires_grad_(False)
    assert count_parameters(nn.Sequential(layer, layer, nn.BatchNorm1d(3))) == 12 + 6
