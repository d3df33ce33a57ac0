import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vfl.core.row_by_row import each_alone


@pytest.mark.parametrize("width", [16, 51])  # rows of 51 numbers begin at changing places of a cache line
@given(order=st.permutations(range(70)), rows=st.integers(1, 70))
def test_a_rows_result_does_not_depend_on_the_rows_beside_it(width, order, rows):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(13, width), torch.nn.ReLU(), torch.nn.Linear(width, 8))
    whole_NW = torch.randn(70, 13)
    chosen = list(order)[:rows]
    with torch.inference_mode():
        expected = each_alone(lambda inputs: model(*inputs), [whole_NW])
        assert torch.equal(each_alone(lambda inputs: model(*inputs), [whole_NW[chosen]]), expected[chosen])
        assert torch.allclose(expected, model(whole_NW), atol=1e-5)
