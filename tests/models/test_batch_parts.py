"""A batch that is cut has, part after part, all that the whole has."""

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.batch import Batch, BatchPart, cut_between_chunks, cut_in_half

Cut = Callable[[BatchPart], tuple[BatchPart, BatchPart] | None]
CHUNKS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=6)


def batch_of(chunks: list[tuple[int, int]]) -> Batch:
    """Chunks of so many tokens behind so many; the last token of each has its logits read."""
    starts = (0, *accumulate(num for num, _ in chunks))
    tokens = torch.arange(starts[-1])
    ends = torch.tensor([end - 1 for end in starts[1:]])
    return Batch(
        input_ids=tokens + 100,
        positions=tokens + 200,
        slots=(tokens + 300, tokens + 400),
        block_tables=(torch.arange(len(chunks))[:, None], torch.arange(len(chunks))[:, None] + 50),
        query_starts=starts,
        context_lens=tuple(num + before for num, before in chunks),
        logits_indices=ends,
        states_indices=torch.tensor([start for start in starts[:-1] if start not in ends]).long(),
        token_types=tokens % 2,
    )


def leaves(part: BatchPart, cut: Cut) -> list[BatchPart]:
    parts = cut(part)
    return [part] if parts is None else [leaf for each in parts for leaf in leaves(each, cut)]


def tokens_read(part: BatchPart, indices: Tensor | None) -> list[int]:
    assert indices is not None
    return part.batch.input_ids[indices].tolist()


@pytest.mark.parametrize("cut", [cut_between_chunks, cut_in_half])
@given(CHUNKS)
def test_parts_have_all_tokens_each_once(cut: Cut, chunks: list[tuple[int, int]]) -> None:
    whole = BatchPart(batch_of(chunks))
    parts = leaves(whole, cut)
    for read in (
        lambda part: part.batch.input_ids.tolist(),
        lambda part: part.batch.positions.tolist(),
        lambda part: part.batch.slots[1].tolist(),
        lambda part: part.batch.token_types.tolist(),
        lambda part: tokens_read(part, part.batch.logits_indices),
        lambda part: tokens_read(part, part.batch.states_indices),
    ):
        assert [value for part in parts for value in read(part)] == read(whole)
    for part in parts:
        (index,) = part.chunks
        assert part.batch.block_tables[1].tolist() == [[index + 50]]
        assert part.batch.query_starts == (0, len(part.batch.positions))
        end = int(part.batch.positions[-1]) - 200 + 1
        left = whole.batch.query_starts[index + 1] - end
        assert part.batch.context_lens == (sum(chunks[index]) - left,)
