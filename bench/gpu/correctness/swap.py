"""Blocks that go to the host and come back, or are forked, while computing overwrites others: what
the device and the host hold then, byte by byte."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from tests.models.kv.late_streams import Clock, LateStream, finish
from tests.models.kv.stores import as_bytes
from torch import Tensor

from bench.gpu.check import Finding, Place
from quire.cache.block_copies import BLOCK_KINDS, BlockCopy, CopyKind
from quire.models.config import KVCacheDtype, KVOptions, KVSize, LayerFacts, ModelFacts
from quire.models.kv.block_copier import BlockCopier, build_block_copier
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import KVStore, build_kv_store
from quire.models.kv.staged_queue import StagedQueue, Streams, build_gatherer

PLAIN = LayerFacts(0, 8, 128, 128, scale=1.0)
LAYERS = {
    "full": (PLAIN, PLAIN),
    "latent": (LayerFacts(0, 1, 576, 512, scale=1.0, is_latent=True),),
    "odd": (LayerFacts(0, 3, 33, 31, scale=1.0), LayerFacts(0, 1, 80, 64, scale=1.0)),
}
REHEARSED_ROWS = 3


class Size(NamedTuple):
    """The blocks of a store, and the steps that copy, with so many copies and new blocks each."""

    num_blocks: int
    num_steps: int
    num_copies: int
    num_new: int


SIZE, REHEARSED = Size(600, 12, 40, 10), Size(12, 3, 16, 3)


@dataclass
class Expected:
    """The bytes of the device and of the host when blocks are copied one by one."""

    device: list[Tensor]
    host: list[Tensor]

    def copy(self, each: BlockCopy) -> None:
        for device, host in zip(self.device, self.host, strict=True):
            source = host if each.kind is CopyKind.IN else device
            target = host if each.kind is CopyKind.OUT else device
            target[each.target] = source[each.source].clone()


@dataclass
class Subject:
    """A store and what copies its blocks: the device's own, or, in a rehearsal, a stand-in whose
    streams do their work in any order that waits allow."""

    store: KVStore
    device: torch.device
    streams: list[LateStream] = field(default_factory=list)

    def copier(self) -> BlockCopier:
        if self.device.type == "cuda":
            return build_block_copier(self.store, self.device)
        clock = Clock()
        self.streams = [LateStream(clock) for _ in range(3)]
        staging = torch.full((2 * REHEARSED_ROWS, self.store.row_bytes), 0xEE, dtype=torch.uint8)
        gatherer = build_gatherer(self.store.tensors, staging)
        return BlockCopier(StagedQueue(gatherer, self.store.host, staging, Streams(*self.streams)))

    def compute(self, work: Callable[[], object]) -> None:
        """Launch work on the stream of steps."""
        if self.streams:
            self.streams[0].launch(work)
        else:
            work()

    def wait(self, rng: random.Random) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        else:
            finish(self.streams, rng.sample(range(3), 3))


def check_swap(place: Place) -> Iterator[Finding]:
    """Random copies of each kind of store, in several steps."""
    size = REHEARSED if place.is_rehearsal else SIZE
    for name, layers in LAYERS.items():
        for kept_as in (KVCacheDtype.AUTO, KVCacheDtype.INT8):
            store = _store(layers, kept_as, size.num_blocks, place.device)
            yield _compare(f"{name}, {kept_as}", Subject(store, place.device), size)


def _store(
    layers: tuple[LayerFacts, ...], kept_as: KVCacheDtype, num_blocks: int, device: torch.device
) -> KVStore:
    facts = ModelFacts("made up", layers, 2, 1000, (), "any", 2)
    store = build_kv_store(
        facts.layout(KVOptions(kept_as)),
        KVSize(num_blocks, 16, num_blocks),
        codec=choose_codec(kept_as, torch.bfloat16),
        device=device,
    )
    for tensor in (*store.tensors, *store.host_tensors):
        as_bytes(tensor).random_(0, 100)
    return store


def _compare(what: str, subject: Subject, size: Size) -> Finding:
    """Copy blocks step by step; each step overwrites what it gets anew."""
    rng, store = random.Random(what), subject.store
    expected = Expected(
        [tensor.cpu().clone() for tensor in store.tensors],
        [tensor.clone() for tensor in store.host_tensors],
    )
    copier = subject.copier()
    for number in range(size.num_steps):
        copies = _copies(rng, size)
        new_blocks = rng.sample(range(size.num_blocks), size.num_new)
        copier.copy_blocks(copies, new_blocks)
        subject.compute(partial(_overwrite, store.tensors, new_blocks, number))
        for each in copies:
            expected.copy(each)
        _overwrite(expected.device, new_blocks, number)
    subject.wait(rng)
    taken = copier.take_copy_time()
    figures = {"blocks": taken.num_blocks, "copy_ms": 1e3 * taken.copy_s}
    found = [*store.tensors, *store.host_tensors]
    is_right = _same(found, [*expected.device, *expected.host])
    return Finding(what, figures, None if is_right else "other bytes than copies one by one leave")


def _overwrite(tensors: Sequence[Tensor], blocks: list[int], number: int) -> None:
    for tensor in tensors:
        as_bytes(tensor)[blocks] = 100 + number


def _copies(rng: random.Random, size: Size) -> list[BlockCopy]:
    """Return copies in an order that matters, among blocks that are used again and again."""
    kinds = [rng.choice(BLOCK_KINDS) for _ in range(4)]
    return [
        BlockCopy(kind, rng.randrange(size.num_blocks), rng.randrange(size.num_blocks))
        for kind in kinds
        for _ in range(size.num_copies // len(kinds))
    ]


def _same(tensors: list[Tensor], expected: list[Tensor]) -> bool:
    pairs = zip(tensors, expected, strict=True)
    return all(torch.equal(as_bytes(one).cpu(), as_bytes(other)) for one, other in pairs)
