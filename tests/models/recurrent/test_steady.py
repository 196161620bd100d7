"""A number's function does not depend on the numbers beside it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import softplus

from quire.models.recurrent.steady import ONE_THREAD, steady


@pytest.mark.parametrize("function", [torch.sigmoid, softplus, torch.exp])
@given(num_rows=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 99))
def test_rows_alone_are_the_same(function: object, num_rows: int, width: int, seed: int) -> None:
    assert callable(function)
    numbers = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed))
    for dtype in (torch.float32, torch.bfloat16):
        rows = numbers.to(dtype)
        whole = steady(function, rows)
        assert torch.equal(whole, torch.stack([steady(function, row) for row in rows]))
        torch.testing.assert_close(whole, function(rows))


def test_parts_of_many_numbers_are_put_together() -> None:
    numbers = torch.linspace(-3, 3, 2 * ONE_THREAD + 5).view(-1, 1)
    torch.testing.assert_close(steady(torch.exp, numbers), numbers.exp())
