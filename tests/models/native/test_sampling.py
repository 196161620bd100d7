"""The sampling kernel's own interface: what it refuses, what it reads, and its threads. What it
samples is
judged in tests/engine, beside the sampler in torch.
"""

from array import array
from collections.abc import Iterator
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.native.library import ISAS
from quire.models.native.sampling.sampling import LogitEdits, SamplingKernel, SamplingMetadata
from tests.instructions import library_of

VOCAB_SIZE = 300
GREEDY = (0.0, 0.0, VOCAB_SIZE, 1.0, -inf, -1.0)
FREE = (0.3, 1.0, VOCAB_SIZE, 1.0, -inf, -1.0)


def kernel_of(isa: str, vocab_size: int = VOCAB_SIZE) -> SamplingKernel:
    return SamplingKernel(library_of(isa), vocab_size)


@pytest.fixture(scope="module", params=ISAS)
def kernel(request: pytest.FixtureRequest) -> SamplingKernel:
    return kernel_of(request.param)


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)) * 3


def draw(
    kernel: SamplingKernel,
    logits: torch.Tensor,
    row: tuple[float, ...],
    edits: LogitEdits | None = None,
) -> list[int]:
    metadata = SamplingMetadata(array("d", row * len(logits)), 0, edits)
    drawn: list[int] = kernel.sample(logits, metadata).token_ids.tolist()
    return drawn


@pytest.mark.parametrize("row", [GREEDY, FREE])
def test_strided_and_wide_dtypes_are_read_right(
    kernel: SamplingKernel, row: tuple[float, ...]
) -> None:
    logits = numbers(6, VOCAB_SIZE).bfloat16()
    wanted = draw(kernel, logits, row)
    wide = torch.zeros(6, VOCAB_SIZE + 7, dtype=torch.bfloat16)
    wide[:, 3 : VOCAB_SIZE + 3] = logits
    assert draw(kernel, wide[:, 3 : VOCAB_SIZE + 3], row) == wanted
    assert draw(kernel, logits.T.contiguous().T, row) == wanted
    for dtype in (torch.float32, torch.float64):
        assert draw(kernel, logits.to(dtype), row) == wanted
    assert draw(kernel, logits.repeat_interleave(2, 0)[::2], row) == wanted


@given(st.data())
def test_edits_take_the_place_of_logits(kernel: SamplingKernel, data: st.DataObject) -> None:
    logits = numbers(4, VOCAB_SIZE)
    ids = st.lists(st.integers(0, VOCAB_SIZE - 1), unique=True, max_size=5)
    edited = [data.draw(ids) for _ in logits]
    starts = torch.tensor([0, *map(len, edited)]).cumsum(0)
    flat = torch.tensor([token_id for each in edited for token_id in each], dtype=torch.int64)
    values = numbers(len(flat)) * 2
    dense = logits.clone()
    dense[torch.arange(4).repeat_interleave(starts.diff()), flat] = values
    for row in (GREEDY, FREE):
        found = draw(kernel, logits, row, LogitEdits(starts, flat, values))
        assert found == draw(kernel, dense, row)


def test_threads_change_nothing(kernel: SamplingKernel, three_threads: None) -> None:
    logits = numbers(200, VOCAB_SIZE)
    for row in (GREEDY, FREE):
        together = draw(kernel, logits, row)
        torch.set_num_threads(1)
        assert draw(kernel, logits, row) == together
        torch.set_num_threads(3)


def test_other_shapes_are_refused(kernel: SamplingKernel) -> None:
    with pytest.raises(ValueError, match="must be 300 wide"):
        draw(kernel, numbers(2, VOCAB_SIZE + 1), GREEDY)


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
def test_ids_that_are_not_there_are_refused(kernel: SamplingKernel, token_id: int) -> None:
    logits = numbers(1, VOCAB_SIZE)
    with pytest.raises(IndexError, match="vocabulary of 300"):
        kernel.score(logits, torch.tensor([token_id]), 0)
    edits = LogitEdits(torch.tensor([0, 1]), torch.tensor([token_id]), torch.zeros(1))
    with pytest.raises(IndexError, match="vocabulary of 300"):
        draw(kernel, logits, GREEDY, edits)
