"""Blocks of a store become rows on the host and blocks again, byte for byte."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.block_rows import BlockRows
from quire.models.kv.kv_rows import HostRows, StagedRows
from quire.models.kv.kv_store import KVStore
from quire.models.kv.rows import row_views
from quire.models.kv.streams import HostStream
from quire.models.kv.torch_gatherer import TorchGatherer
from tests.models.kv.stores import NUM_BLOCKS, as_bytes, same_bytes, stores
from tests.profiles import cases


def staged_rows(store: KVStore) -> StagedRows:
    """The rows of a GPU, in the memory of the host."""
    staging = torch.empty((NUM_BLOCKS, store.row_bytes), dtype=torch.uint8)
    return StagedRows(TorchGatherer(store.tensors, staging), staging, HostStream())


@pytest.mark.parametrize("build", [HostRows, staged_rows])
@cases(60)
@given(
    stores, st.lists(st.integers(0, NUM_BLOCKS - 1), min_size=1, max_size=NUM_BLOCKS, unique=True)
)
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
