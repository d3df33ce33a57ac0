import torch
from hypothesis import given
from hypothesis import strategies as st

from vfl.vertical.chunks import in_chunks


@given(st.permutations(range(70)), st.integers(1, 70))
def test_a_rows_result_does_not_depend_on_the_rows_beside_it(order, rows):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(13, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    whole_NW = torch.randn(70, 13)
    chosen = list(order)[:rows]
    with torch.inference_mode():
        expected = in_chunks(lambda inputs: model(*inputs), [whole_NW])
        assert torch.equal(in_chunks(lambda inputs: model(*inputs), [whole_NW[chosen]]), expected[chosen])
        assert torch.allclose(expected, model(whole_NW), atol=1e-5)
