"""Blocks are copied in the given order, whenever the copies beside the computing really run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyBatch, CopyKind, CopyTime, copy_batches
from quire.models.config import KVCacheDtype, KVOptions, KVSize, LayerFacts, ModelFacts
from quire.models.kv.block_copier import BlockCopier, Mark, build_block_copier, runs
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import KVStore, build_kv_store
from tests.profiles import cases

CPU = torch.device("cpu")
NUM_BLOCKS = 5


class Late:
    """A queue as a GPU may run it: no copy is done before something waits for it, and each takes a
    second."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []
        self.num_done = 0
        self.num_waited = 0

    def begin(self) -> None:
        pass

    def copy(self, target: Tensor, source: Tensor, blocks: CopyBatch) -> None:
        for to, since, length in runs(blocks):
            there, here = target[to : to + length], source[since : since + length]
            self.waiting.append(partial(there.copy_, here))

    def mark(self) -> Mark:
        return LateMark(self, len(self.waiting))

    def mark_computing(self) -> Mark:
        return LateMark(self, self.num_waited)

    def run(self, end: int) -> None:
        for copy in self.waiting[self.num_done : end]:
            copy()
        self.num_done = max(self.num_done, end)

    def finish(self) -> None:
        """Let everything end, of the copies and of what is computed."""
        self.num_waited = len(self.waiting)
        self.run(self.num_waited)


@dataclass(frozen=True)
class LateMark:
    queue: Late
    end: int

    @property
    def is_reached(self) -> bool:
        return self.end <= self.queue.num_done

    def hold_computing(self) -> None:
        self.queue.run(self.end)
        self.queue.num_waited = max(self.queue.num_waited, self.end)

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, LateMark) and self.is_reached
        return float(self.end - earlier.end)


@dataclass(frozen=True)
class StepCopies:
    """Block copies, and then a step that overwrites the blocks that its requests get anew."""

    copies: list[BlockCopy]
    new_blocks: set[int]


@dataclass
class Blocks:
    """What the device and the host hold, copied one by one and at once."""

    store: KVStore
    device: list[Tensor] = field(init=False)
    host: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.device = [tensor.clone() for tensor in self.store.tensors]
        self.host = [tensor.clone() for tensor in self.store.host]

    def copy(self, each: BlockCopy) -> None:
        for device, host in zip(self.device, self.host, strict=True):
            source = host if each.kind is CopyKind.IN else device
            target = host if each.kind is CopyKind.OUT else device
            target[each.target] = source[each.source].clone()

    def check(self, block: int) -> None:
        for kept, expected in zip(self.store.tensors, self.device, strict=True):
            assert same_bytes(kept[block], expected[block])

    def check_all(self) -> None:
        pairs = zip(
            (*self.store.tensors, *self.store.host), (*self.device, *self.host), strict=True
        )
        assert all(same_bytes(kept, expected) for kept, expected in pairs)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def build(kind: str, kept_as: KVCacheDtype) -> KVStore:
    layer = LayerFacts(0, 2, 12, 8, scale=1.0, is_latent=kind == "latent")
    facts = ModelFacts("made up", (layer, layer), 2, 1000, (), "any", 4)
    store = build_kv_store(
        facts.layout(KVOptions(kept_as)),
        KVSize(NUM_BLOCKS, 4, NUM_BLOCKS),
        codec=choose_codec(kept_as, torch.float32),
        device=CPU,
    )
    for tensor in (*store.tensors, *store.host):
        tensor.view(torch.uint8).random_(0, 100)
    return store


blocks = st.integers(0, NUM_BLOCKS - 1)
steps = st.lists(
    st.builds(
        StepCopies,
        st.lists(st.builds(BlockCopy, st.sampled_from(CopyKind), blocks, blocks), max_size=8),
        st.sets(blocks, max_size=2),
    ),
    max_size=6,
)


@pytest.mark.parametrize("queue", [Late, None], ids=["late", "at once"])
@cases(100)
@given(steps, st.sampled_from(["full", "latent"]), st.sampled_from(KVCacheDtype))
def test_copies_beside_the_computing_are_copies_one_by_one(
    queue: type[Late] | None, steps: list[StepCopies], kind: str, kept_as: KVCacheDtype
) -> None:
    store = build(kind, kept_as)
    expected = Blocks(store)
    copier = build_block_copier(store, CPU) if queue is None else BlockCopier(store, queue())
    told = []
    for number, step in enumerate(steps):
        copier.copy_blocks(step.copies, step.new_blocks)
        for each in step.copies:
            expected.copy(each)
        for each in step.copies:
            if each.kind is not CopyKind.OUT:
                expected.check(each.target)
        for kept in (store.tensors, expected.device):
            for tensor in kept:
                tensor.view(torch.uint8)[list(step.new_blocks)] = 100 + number
        told.append(copier.take_copy_time())
    if isinstance(copier.queue, Late):
        copier.queue.finish()
    told.append(copier.take_copy_time())
    copies = [each for step in steps for each in step.copies if each.kind is not CopyKind.FORK]
    assert sum(time.num_blocks for time in told) == len(copies)
    if isinstance(copier.queue, Late):
        assert sum(time.copy_s for time in told) >= sum(1 for _ in copies)
    assert copier.take_copy_time() == CopyTime()
    expected.check_all()


def test_what_nobody_gets_anew_goes_out_while_the_step_computes() -> None:
    store, queue = build("full", KVCacheDtype.AUTO), Late()
    copier = BlockCopier(store, queue)
    out = [BlockCopy(CopyKind.OUT, block, block) for block in range(4)]
    copier.copy_blocks(out, {2})
    num_tensors = len(store.tensors)
    assert queue.num_done == num_tensors, "block 2, in each tensor"
    copier.copy_blocks([], {4})
    assert queue.num_done == num_tensors
    copier.copy_blocks([], {0})
    assert queue.num_done == len(queue.waiting)


def test_the_time_of_copies_is_told_with_their_blocks_and_only_when_they_are_done() -> None:
    store, queue = build("full", KVCacheDtype.AUTO), Late()
    copier, num_tensors = BlockCopier(store, queue), len(store.tensors)
    copier.copy_blocks([BlockCopy(CopyKind.OUT, block, block) for block in (1, 3)], ())
    copier.copy_blocks([BlockCopy(CopyKind.OUT, 0, 0)], ())
    assert copier.take_copy_time() == CopyTime()
    queue.run(num_tensors)
    assert copier.take_copy_time() == CopyTime(), "one of two runs"
    copier.copy_blocks([], {3})
    assert copier.take_copy_time() == CopyTime(2, 2.0 * num_tensors, 2.0 * num_tensors)
    queue.finish()
    assert copier.take_copy_time() == CopyTime(1, 1.0 * num_tensors, 0.0)
    copier.copy_blocks([BlockCopy(CopyKind.FORK, 0, 1)], ())
    assert copier.take_copy_time() == CopyTime(0, 0.0, 1.0 * num_tensors)


def test_copies_within_the_device_are_made_block_by_block() -> None:
    """The run from 1 and 2 to 0 and 1 would read what it writes."""
    store = build("full", KVCacheDtype.AUTO)
    expected, copier = Blocks(store), BlockCopier(store, Late())
    copies = [BlockCopy(CopyKind.FORK, 1, 0), BlockCopy(CopyKind.FORK, 2, 1)]
    copier.copy_blocks(copies, ())
    for each in copies:
        expected.copy(each)
    expected.check_all()


@given(st.lists(st.tuples(blocks, blocks), unique_by=lambda pair: pair[1]))
def test_runs_are_the_pairs_in_order_neighbours_together(pairs: list[tuple[int, int]]) -> None:
    batch = CopyBatch(CopyKind.OUT, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
    found = list(runs(batch))
    each = [
        (since + offset, to + offset) for to, since, length in found for offset in range(length)
    ]
    assert each == pairs
    for (to, since, length), (next_to, next_since, _) in pairwise(found):
        assert (next_to, next_since) != (to + length, since + length)


def test_a_few_copies_are_few_batches() -> None:
    out = [BlockCopy(CopyKind.OUT, block, block + 1) for block in range(4)]
    copies = [BlockCopy(CopyKind.FORK, 1, 2), BlockCopy(CopyKind.FORK, 1, 3)]
    chain = [BlockCopy(CopyKind.FORK, 3, 4)]
    assert [len(batch.sources) for batch in copy_batches([*out, *copies, *chain])] == [4, 2, 1]
