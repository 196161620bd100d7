"""Blocks of a store become rows on the host and blocks again, byte for byte."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.block_rows import BlockRows
from quire.models.kv.kv_rows import HostRows, StagedRows
from quire.models.kv.kv_store import KVStore
from quire.models.kv.row_memory import RowMemory
from quire.models.kv.rows import row_views
from quire.models.kv.streams import HostStream
from quire.models.kv.torch_gatherer import TorchGatherer
from tests.models.kv.stores import NUM_BLOCKS, as_bytes, same_bytes, stores
from tests.profiles import cases


def staged_rows(store: KVStore) -> StagedRows:
    """The rows of a GPU, in the memory of the host."""
    staging = torch.empty((NUM_BLOCKS, store.row_bytes), dtype=torch.uint8)
    return StagedRows(TorchGatherer(store.tensors, staging), staging, HostStream())


NUMBERS = st.integers(0, NUM_BLOCKS - 1)
SIDE_BY_SIDE = st.builds(
    lambda first, num: [*range(first, min(first + num, NUM_BLOCKS))],
    NUMBERS,
    st.integers(1, NUM_BLOCKS - 1),
)
ANY_ORDER = st.lists(NUMBERS, min_size=1, max_size=NUM_BLOCKS - 1, unique=True)
IN_RUNS = st.builds(
    lambda run, more: list(dict.fromkeys(run + more))[: NUM_BLOCKS - 1], SIDE_BY_SIDE, ANY_ORDER
)


@pytest.mark.parametrize("build", [HostRows, staged_rows])
@cases(60)
@given(stores, st.one_of(ANY_ORDER, SIDE_BY_SIDE, IN_RUNS))
def test_rows_hold_blocks_and_are_written_back(
    build: Callable[[KVStore], BlockRows], store: KVStore, blocks: list[int]
) -> None:
    rows = build(store)
    assert rows.row_bytes == store.row_bytes and rows.max_rows >= 1
    before = [tensor.clone() for tensor in store.tensors]
    read = rows.new_rows(len(blocks))
    assert rows.read(blocks, read).is_reached
    for tensor, view in zip(before, row_views(read, store.tensors), strict=True):
        assert same_bytes([tensor[blocks]], [view])
    for tensor in store.tensors:
        as_bytes(tensor).fill_(7)
    rows.write(read, blocks)
    others = [block for block in range(NUM_BLOCKS) if block not in blocks]
    for tensor, expected in zip(store.tensors, before, strict=True):
        assert same_bytes([tensor[blocks]], [expected[blocks]])
        assert bool((as_bytes(tensor[others]) == 7).all())


def test_memory_of_rows_that_are_used_is_not_given_again() -> None:
    """A row in use holds its memory when the tensor itself is gone."""
    memory = RowMemory(8, 4 * 8)
    kept = memory.new_rows(4)
    kept.fill_(7)
    row = kept[1].numpy()
    del kept
    others = [memory.new_rows(num_rows) for num_rows in (4, 3, 1, 9)]
    for other in others:
        other.fill_(9)
    assert [list(other.shape) for other in others] == [[4, 8], [3, 8], [1, 8], [9, 8]]
    assert row.tobytes() == bytes([7]) * 8
    address = memory.new_rows(2).data_ptr()
    assert memory.new_rows(4).data_ptr() == address
