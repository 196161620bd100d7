"""Blocks are copied in the given order, whenever the copies beside the computing really run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.cache.block_copies import BLOCK_KINDS, BlockCopy, CopyKind, CopyTime, copy_batches
from quire.models.config import KVCacheDtype
from quire.models.kv.block_copier import BlockCopier, build_block_copier
from quire.models.kv.kv_store import KVStore
from quire.models.kv.staged_queue import StagedQueue, Streams, build_gatherer, runs
from quire.models.kv.torch_gatherer import TorchGatherer
from tests.models.kv.late_streams import Clock, LateStream, advance, finish
from tests.models.kv.stores import (
    CPU,
    FULL,
    LATENT,
    NUM_BLOCKS,
    Blocks,
    as_bytes,
    build_store,
    same_bytes,
)
from tests.profiles import cases

POISON = 0xEE
COMPUTING, KERNELS, COPIES = range(3)


@dataclass(frozen=True)
class StepCopies:
    """Block copies, and then a step that overwrites the blocks that its requests get anew.

    progress: the streams that advance before the next step, in this order.
    """

    copies: list[BlockCopy]
    new_blocks: set[int]
    progress: list[int]


blocks = st.integers(0, NUM_BLOCKS - 1)
steps = st.lists(
    st.builds(
        StepCopies,
        st.lists(st.builds(BlockCopy, st.sampled_from(BLOCK_KINDS), blocks, blocks), max_size=8),
        st.sets(blocks, max_size=2),
        st.lists(st.integers(0, 2), max_size=24),
    ),
    max_size=6,
)


@dataclass
class Device:
    """A copier over staging memory for `half_rows` blocks, twice, and streams that may be late."""

    store: KVStore
    half_rows: int
    streams: list[LateStream] = field(init=False)
    copier: BlockCopier = field(init=False)

    def __post_init__(self) -> None:
        clock = Clock()
        self.streams = [LateStream(clock) for _ in range(3)]
        shape = (2 * self.half_rows, self.store.row_bytes)
        staging = torch.full(shape, POISON, dtype=torch.uint8)
        gatherer = TorchGatherer(self.store.tensors, staging)
        queue = StagedQueue(gatherer, self.store.host, staging, Streams(*self.streams))
        self.copier = BlockCopier(queue)


def compute(store: KVStore, step: StepCopies, number: int, seen: list[list[Tensor]]) -> None:
    """A step does this: it reads what was copied in or forked, and overwrites what it got
    anew."""
    read = [each.target for each in step.copies if each.kind is not CopyKind.OUT]
    seen.append([as_bytes(tensor)[read] for tensor in store.tensors])
    overwrite(store.tensors, step, number)


def overwrite(tensors: Sequence[Tensor], step: StepCopies, number: int) -> None:
    for tensor in tensors:
        as_bytes(tensor)[list(step.new_blocks)] = 100 + number


def expect(store: KVStore, steps: list[StepCopies]) -> tuple[Blocks, list[list[Tensor]]]:
    """Return what the store holds after the steps, and what each of them reads."""
    expected, seen = Blocks(store), []
    for number, step in enumerate(steps):
        for each in step.copies:
            expected.copy(each)
        read = [each.target for each in step.copies if each.kind is not CopyKind.OUT]
        seen.append([as_bytes(tensor)[read] for tensor in expected.device])
        overwrite(expected.device, step, number)
    return expected, seen


def num_swapped(steps: list[StepCopies]) -> int:
    return sum(each.kind is not CopyKind.FORK for step in steps for each in step.copies)


@cases(300)
@given(
    steps,
    st.integers(1, 3),
    st.permutations(range(3)),
    st.sampled_from([FULL, LATENT]),
    st.sampled_from(KVCacheDtype),
)
def test_copies_beside_the_computing_are_copies_one_by_one(
    steps: list[StepCopies], half_rows: int, order: list[int], layer: object, kept_as: KVCacheDtype
) -> None:
    """Copies are right in whatever order the streams do what they need not wait for, also where the
    staging memory holds fewer blocks than are copied. A late stream may gather before it marks the
    begin of the interval, but not copy."""
    store = build_store([FULL if layer is FULL else LATENT] * 2, kept_as)
    expected, expected_seen = expect(store, steps)
    device, seen, told = Device(store, half_rows), list[list[Tensor]](), CopyTime()
    for number, step in enumerate(steps):
        device.copier.copy_blocks(step.copies, step.new_blocks)
        device.streams[COMPUTING].launch(partial(compute, store, step, number, seen))
        advance(device.streams, step.progress)
        told = added(told, device.copier.take_copy_time())
    finish(device.streams, order)
    told = added(told, device.copier.take_copy_time())
    expected.check()
    for read, right in zip(seen, expected_seen, strict=True):
        assert same_bytes(read, right)
    assert told.num_blocks == num_swapped(steps)
    assert told.copy_s >= (told.num_blocks > 0)
    assert device.copier.take_copy_time() == CopyTime()


def added(one: CopyTime, other: CopyTime) -> CopyTime:
    pairs = (
        one.num_blocks + other.num_blocks,
        one.copy_s + other.copy_s,
        one.stall_s + other.stall_s,
    )
    return CopyTime(*pairs)


@cases(100)
@given(steps, st.sampled_from([FULL, LATENT]), st.sampled_from(KVCacheDtype))
def test_copies_of_a_host_are_copies_one_by_one(
    steps: list[StepCopies], layer: object, kept_as: KVCacheDtype
) -> None:
    store = build_store([FULL if layer is FULL else LATENT] * 2, kept_as)
    expected, expected_seen = expect(store, steps)
    copier, seen, num_told = build_block_copier(store, CPU), list[list[Tensor]](), 0
    for number, step in enumerate(steps):
        copier.copy_blocks(step.copies, step.new_blocks)
        compute(store, step, number, seen)
        told = copier.take_copy_time()
        assert 0 <= told.copy_s <= told.stall_s
        num_told += told.num_blocks
    expected.check()
    for read, right in zip(seen, expected_seen, strict=True):
        assert same_bytes(read, right)
    assert num_told == num_swapped(steps)


def test_computing_waits_for_what_it_overwrites_to_be_gathered_and_for_no_more() -> None:
    store = build_store([FULL], KVCacheDtype.AUTO)
    device = Device(store, 2)
    computing, kernels, copies = device.streams
    out = [BlockCopy(CopyKind.OUT, block, block) for block in range(4)]
    device.copier.copy_blocks(out, {2})
    while computing.advance() or kernels.advance():
        pass
    assert computing.is_done, "what is in staging memory may be overwritten"
    assert kernels.clock.seconds == 2, "both halves are filled before anything is copied"
    assert not kernels.is_done, "its second half is taken, and the first not yet on the host"
    device.copier.copy_blocks([], {4})
    assert computing.is_done, "nobody copies block 4"
    device.copier.copy_blocks([], {3})
    computing.advance()
    assert not computing.is_done
    while copies.advance() or kernels.advance():
        pass
    assert computing.advance() and computing.is_done


def test_the_time_of_copies_is_told_with_their_blocks_and_only_when_they_are_done() -> None:
    store = build_store([FULL], KVCacheDtype.AUTO)
    device = Device(store, 4)
    computing, kernels, copies = device.streams
    copier = device.copier
    copier.copy_blocks([BlockCopy(CopyKind.OUT, block, block) for block in (1, 3)], ())
    copier.copy_blocks([BlockCopy(CopyKind.OUT, 0, 0)], ())
    assert copier.take_copy_time() == CopyTime()
    for _ in range(20):
        computing.advance()
        kernels.advance()
    assert kernels.is_done and copier.take_copy_time() == CopyTime(), "they are on their way"
    while copier.take_copy_time() == CopyTime():
        assert copies.advance()
    assert not copies.is_done, "the second step's copy comes with a time of its own"
    finish(device.streams, [COPIES])
    assert copier.take_copy_time() == CopyTime(1, 1.0, 0.0), "of its gather that was over"
    copier.copy_blocks([BlockCopy(CopyKind.FORK, 0, 1)], ())
    finish(device.streams, [COMPUTING, KERNELS, COPIES])
    assert copier.take_copy_time() == CopyTime(0, 0.0, 1.0)


def test_neighbours_on_the_host_are_one_copy_whatever_the_order_of_the_blocks() -> None:
    store = build_store([FULL, FULL], KVCacheDtype.AUTO)
    device = Device(store, NUM_BLOCKS)
    copies = [BlockCopy(CopyKind.OUT, block, host) for block, host in ((1, 3), (4, 0), (2, 4))]
    device.copier.copy_blocks(copies, ())
    finish(device.streams, [KERNELS, COPIES, COMPUTING])
    num_launched = device.copier.take_copy_time().copy_s
    assert num_launched == 1 + 2, "a gather, and the copies of row 0 and of rows 3 and 4"


def test_copies_within_the_device_are_made_block_by_block() -> None:
    """The run from 1 and 2 to 0 and 1 would read what it writes."""
    store = build_store([FULL], KVCacheDtype.AUTO)
    expected, device = Blocks(store), Device(store, 1)
    copies = [BlockCopy(CopyKind.FORK, 1, 0), BlockCopy(CopyKind.FORK, 2, 1)]
    device.copier.copy_blocks(copies, ())
    for each in copies:
        expected.copy(each)
    finish(device.streams, [COMPUTING, KERNELS, COPIES])
    expected.check()


def test_forks_need_neither_a_host_nor_staging_memory() -> None:
    store = build_store([FULL], KVCacheDtype.AUTO)
    staging = torch.empty((0, store.row_bytes), dtype=torch.uint8)
    streams = [LateStream(Clock()) for _ in range(3)]
    gatherer = build_gatherer(store.tensors, staging)
    copier = BlockCopier(StagedQueue(gatherer, None, staging, Streams(*streams)))
    expected, fork = Blocks(store), BlockCopy(CopyKind.FORK, 1, 0)
    expected.copy(fork)
    copier.copy_blocks([fork], ())
    finish(streams, [COMPUTING, KERNELS, COPIES])
    expected.check()


@given(st.lists(blocks, unique=True))
def test_runs_are_the_rows_in_order_neighbours_together(rows: list[int]) -> None:
    found = list(runs(rows))
    each = [(at + k, row + k) for at, row, length in found for k in range(length)]
    assert each == list(enumerate(rows))
    for (_, row, length), (_, next_row, _) in pairwise(found):
        assert next_row != row + length


def test_a_few_copies_are_few_batches() -> None:
    out = [BlockCopy(CopyKind.OUT, block, block + 1) for block in range(4)]
    copies = [BlockCopy(CopyKind.FORK, 1, 2), BlockCopy(CopyKind.FORK, 1, 3)]
    chain = [BlockCopy(CopyKind.FORK, 3, 4)]
    assert [len(batch.sources) for batch in copy_batches([*out, *copies, *chain])] == [4, 2, 1]
