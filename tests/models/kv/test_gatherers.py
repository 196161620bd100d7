"""Blocks of a store become rows of staging memory, and rows blocks, byte for byte."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.config import KVCacheDtype
from quire.models.kv.kv_store import KVStore
from quire.models.kv.rows import row_views
from quire.models.kv.staged_queue import Gatherer
from quire.models.kv.torch_gatherer import TorchGatherer
from tests.models.kv.stores import FULL, NUM_BLOCKS, as_bytes, build_store, same_bytes, stores
from tests.profiles import cases

POISON = 0xEE
NUM_ROWS = 2 * NUM_BLOCKS
Build = Callable[[Sequence[Tensor], Tensor], Gatherer]


def triton_gatherer(tensors: Sequence[Tensor], staging: Tensor) -> Gatherer:
    pytest.importorskip("triton", reason="triton is not installed")
    from quire.models.kv.triton.gatherer import TritonGatherer

    return TritonGatherer(tensors, staging)


GATHERERS = pytest.mark.parametrize("build", [TorchGatherer, triton_gatherer])
MANY_ELEMENTS = 1 << 13
"""More than a program of the Triton kernels copies by far, which is 1024."""

any_blocks = st.lists(st.integers(0, NUM_BLOCKS - 1), min_size=1, max_size=NUM_BLOCKS)
other_blocks = st.lists(
    st.integers(0, NUM_BLOCKS - 1), min_size=1, max_size=NUM_BLOCKS, unique=True
)
first_rows = st.integers(0, NUM_ROWS - NUM_BLOCKS)


def staging_of(store: KVStore) -> Tensor:
    return torch.full((NUM_ROWS, store.row_bytes), POISON, dtype=torch.uint8)


def copies_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


@GATHERERS
@cases(60)
@given(stores, any_blocks, first_rows)
def test_gathered_rows_hold_the_blocks_and_nothing_else_is_written(
    build: Build, store: KVStore, blocks: list[int], first_row: int
) -> None:
    staging, before, expected = staging_of(store), copies_of(store.tensors), staging_of(store)
    for tensor, row in zip(before, row_views(expected, store.tensors), strict=True):
        for index, block in enumerate(blocks):
            row[first_row + index] = tensor[block]
    build(store.tensors, staging).gather(blocks, first_row)
    assert torch.equal(staging, expected)
    assert same_bytes(store.tensors, before)


@GATHERERS
@cases(60)
@given(stores, other_blocks, first_rows)
def test_scattered_blocks_hold_the_rows_and_nothing_else_is_written(
    build: Build, store: KVStore, blocks: list[int], first_row: int
) -> None:
    staging, expected = staging_of(store), copies_of(store.tensors)
    staging.random_(100, 200)
    before = staging.clone()
    for tensor, row in zip(expected, row_views(staging, store.tensors), strict=True):
        for index, block in enumerate(blocks):
            tensor[block] = row[first_row + index]
    build(store.tensors, staging).scatter(blocks, first_row)
    assert same_bytes(store.tensors, expected)
    assert torch.equal(staging, before)


@GATHERERS
@cases(60)
@given(stores, any_blocks, other_blocks)
def test_forked_blocks_hold_their_sources_and_nothing_else_is_written(
    build: Build, store: KVStore, sources: list[int], targets: list[int]
) -> None:
    targets = [block for block in targets if block not in sources][: len(sources)]
    sources = sources[: len(targets)]
    if not targets:
        return
    expected = copies_of(store.tensors)
    for tensor in expected:
        for source, target in zip(sources, targets, strict=True):
            tensor[target] = tensor[source]
    build(store.tensors, staging_of(store)).fork(sources, targets)
    assert same_bytes(store.tensors, expected)


@GATHERERS
@pytest.mark.parametrize("width", [640, 641], ids=["aligned", "odd"])
@pytest.mark.parametrize("kept_as", KVCacheDtype)
def test_blocks_of_several_tiles_come_back_as_they_went(
    build: Build, kept_as: KVCacheDtype, width: int
) -> None:
    wide = replace(FULL, num_kv_heads=5, head_size=width, v_head_size=width)
    store = build_store([wide], kept_as)
    assert as_bytes(store.tensors[0])[0].numel() > MANY_ELEMENTS
    staging, before = staging_of(store), copies_of(store.tensors)
    gatherer = build(store.tensors, staging)
    gatherer.gather([3, 1], 4)
    for tensor in store.tensors:
        as_bytes(tensor)[[1, 3]] = POISON
    gatherer.scatter([3, 1], 4)
    assert same_bytes(store.tensors, before)
