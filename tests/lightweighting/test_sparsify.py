import math
from decimal import Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from shorthand import examples
from torch import Tensor

from vfl.compression.codec import ValueType, decode, encode
from vfl.compression.sparsify import ErrorFeedback, omega, sparsify

BETAS = st.floats(0, 1, exclude_max=True)
ENTRIES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan]),
    st.floats(-100, 100, width=16),
)


@st.composite
def matrices(draw: st.DrawFn, entries: st.SearchStrategy[float] = ENTRIES) -> Tensor:
    rows, columns = draw(st.integers(0, 6)), draw(st.integers(1, 7))
    flat = draw(st.lists(entries, min_size=rows * columns, max_size=rows * columns))
    return torch.tensor(flat, dtype=torch.float32).reshape(rows, columns)


def slow_sparsify(matrix: Tensor, beta: float) -> Tensor:
    """Zeroes one smallest entry at a time, the first of equals, NaN last."""
    result = matrix.clone().flatten()
    entries: list[float] = matrix.flatten().tolist()
    left = list(range(len(entries)))
    for _ in range(math.floor(Decimal(repr(beta)) * len(entries))):  # beta as it is written
        smallest = left[0]
        for i in left:
            if abs(entries[i]) < abs(entries[smallest]) or (
                math.isnan(entries[smallest]) and not math.isnan(entries[i])
            ):
                smallest = i
        result[smallest] = 0.0
        left.remove(smallest)
    return result.reshape(matrix.shape)


def random_embedding(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


# --- sparsify ---


@given(matrices(), BETAS, st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
@examples(400)
def test_sparsify_matches_removing_one_smallest_entry_at_a_time(
    matrix: Tensor, beta: float, dtype: torch.dtype
) -> None:
    matrix = matrix.to(dtype)
    matrix[matrix.isnan()] = math.nan  # conversion gives NaN differing payloads
    before = matrix.clone()
    result = sparsify(matrix, beta)
    assert (result.dtype, result.shape) == (dtype, matrix.shape)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(result.view(bits), slow_sparsify(matrix, beta).view(bits))
    assert torch.equal(matrix.view(bits), before.view(bits))


@pytest.mark.parametrize("shape", [(256, 128), (256, 512), (1, 1000), (1000, 1), (3, 4, 5)])
@pytest.mark.parametrize("beta", [0.0, 0.2, 0.6, 0.999])
def test_exactly_the_floor_of_the_share_is_removed_at_real_sizes(shape: tuple[int, ...], beta: float) -> None:
    embedding = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    kept = sparsify(embedding, beta) != 0
    removed = math.floor(beta * embedding.numel())
    assert int((~kept).sum()) == removed
    if removed:
        assert embedding[~kept].abs().max() <= embedding[kept].abs().min()


@pytest.mark.parametrize(("beta", "removed"), [(0.29, 29), (0.57, 57), (0.58, 58), (0.999, 99)])
def test_the_share_is_meant_in_decimal(beta: float, removed: int) -> None:
    """0.29 * 100 is 28.999999999999996 in floating point."""
    assert int((sparsify(random_embedding(10, 10), beta) == 0).sum()) == removed


def test_equal_entries_go_from_the_lowest_row_major_index() -> None:
    embedding = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    assert sparsify(embedding, 0.75).tolist() == [[0, 0], [0, 1]]
    assert sparsify(embedding.T.contiguous().T, 0.5).tolist() == [[0, 0], [1, 1]]


def test_the_result_is_detached_and_beta_zero_copies_nothing() -> None:
    embedding = random_embedding(4, 4).requires_grad_()
    assert not sparsify(embedding, 0.5).requires_grad
    unchanged = sparsify(embedding, 0)
    assert not unchanged.requires_grad
    assert unchanged.data_ptr() == embedding.data_ptr()


@pytest.mark.parametrize("beta", [-0.1, 1.0, 1.5, math.nan])
def test_beta_outside_its_range_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match=r"lightweighting\.beta"):
        sparsify(torch.ones(2, 2), beta)


def test_other_element_types_are_refused() -> None:
    with pytest.raises(ValueError, match="float32"):
        sparsify(torch.ones(2, 2, dtype=torch.float64), 0.5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_gives_the_same_result() -> None:
    embedding = random_embedding(64, 32).round(decimals=1)
    assert torch.equal(sparsify(embedding.cuda(), 0.6).cpu(), sparsify(embedding, 0.6))


# --- omega ---


@given(matrices(st.floats(-100, 100, width=16)), BETAS)
@examples(200)
def test_omega_is_at_most_beta_times_the_mean_energy(matrix: Tensor, beta: float) -> None:
    energy = omega(matrix, torch.zeros_like(matrix))
    assert omega(matrix, sparsify(matrix, beta)) <= beta * energy * (1 + 1e-12)


def test_omega_is_the_mean_over_samples_of_squared_distances() -> None:
    embedding = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, -1.0]])
    assert omega(embedding, torch.tensor([[0.0, 2.0, 3.0], [4.0, 0.0, 1.0]])) == (1 + 4) / 2
    assert omega(torch.zeros(0, 3), torch.zeros(0, 3)) == 0
    refuses("", lambda: omega(embedding, embedding[:1]), "sparsified")


# --- error feedback ---


@pytest.mark.parametrize("values", ["float32", "float16", "bfloat16"])
def test_both_ends_of_error_feedback_agree_bit_for_bit(values: ValueType) -> None:
    samples, width = 40, 12
    sender, receiver = ErrorFeedback(samples, width), ErrorFeedback(samples, width)
    generator = torch.Generator().manual_seed(2)
    for step in range(30):
        rows = torch.randperm(samples, generator=generator)[:16]
        embedding = random_embedding(16, width, seed=step)
        frame = encode(sparsify(sender.difference(rows, embedding), 0.6), values)
        sent, received = sender.apply(rows, decode(frame)), receiver.apply(rows, decode(frame))
        assert torch.equal(sent.view(torch.int32), received.view(torch.int32))
    assert torch.equal(sender.estimate_ND.view(torch.int32), receiver.estimate_ND.view(torch.int32))
    assert sender.estimate_ND.count_nonzero() > 0


def test_returned_rows_are_not_views_and_carry_no_gradient() -> None:
    feedback, rows = ErrorFeedback(3, 2), torch.tensor([2, 0])
    embedding = torch.ones(2, 2, requires_grad=True)
    assert not feedback.difference(rows, embedding).requires_grad
    feedback.apply(rows, embedding).mul_(5)
    assert not feedback.estimate_ND.requires_grad
    assert feedback.estimate_ND.tolist() == [[1, 1], [0, 0], [1, 1]]


def test_the_estimate_survives_saving_and_loading() -> None:
    feedback, rows = ErrorFeedback(6, 3), torch.tensor([1, 4])
    feedback.apply(rows, random_embedding(2, 3))
    state = {name: tensor.clone() for name, tensor in feedback.state_dict().items()}
    resumed = ErrorFeedback(6, 3)
    resumed.load_state_dict(state)
    assert torch.equal(resumed.estimate_ND, feedback.estimate_ND)
    resumed.apply(rows, torch.ones(2, 3))
    assert torch.equal(state["estimate_ND"], feedback.estimate_ND)
    with pytest.raises(ValueError, match="embedding width"):
        ErrorFeedback(6, 4).load_state_dict(state)


@pytest.mark.parametrize(("rows", "update"), [([1, 1], (2, 3)), ([0, 1], (3, 3)), ([0, 1], (2, 4))])
def test_repeated_rows_and_mismatched_batches_fail_loudly(rows: list[int], update: tuple[int, int]) -> None:
    feedback = ErrorFeedback(4, 3)
    with pytest.raises(AssertionError):
        feedback.difference(torch.tensor(rows), torch.ones(update))
    with pytest.raises(AssertionError):
        feedback.apply(torch.tensor(rows), torch.ones(update))
