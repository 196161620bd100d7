"""The speed of swapping: the scattered blocks of one long request of an 8B model, to the host and
back, beside one copy of as many bytes that lie together in pinned memory."""

import random
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from bench.cpu_attention import LLAMA, Shape, build_layers
from bench.gpu.check import Finding, Place
from bench.gpu.speed.attention_case import BLOCK_SIZE
from bench.gpu.speed.floor import Rates, Work, judge
from bench.gpu.speed.timing import REPLAYS, Timing, time_launched
from quire.cache.block_copies import BlockCopy, CopyKind
from quire.models.config import KVCacheDtype, KVOptions, KVSize, ModelFacts
from quire.models.kv.block_copier import BlockCopier, build_block_copier
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import KVStore, build_kv_store

NO_PRODUCTS = 1.0
"""A rate of products, which swapping has none of."""


class Swap(NamedTuple):
    """The request that is swapped: its tokens, and the shape and number of its model's layers. So
    many times its blocks are in the store, among which they are scattered."""

    num_tokens: int
    shape: Shape
    num_layers: int
    num_times: int = 3

    @property
    def num_blocks(self) -> int:
        return -(-self.num_tokens // BLOCK_SIZE)


REQUEST = Swap(4096, LLAMA, 32)
REHEARSED = Swap(40, Shape(2, 1, 16), 2)


@torch.inference_mode()
def check_swap(place: Place) -> Iterator[Finding]:
    """Time one direction, then the other. `host_ms` is how long the host is busy with launching."""
    swap = REHEARSED if place.is_rehearsal else REQUEST
    store = build_store(swap, place.device)
    num_bytes = store.num_bytes // _num_blocks(swap) * swap.num_blocks
    copier = build_block_copier(store, place.device)
    blocks, rows = scattered(swap, seed=0), scattered(swap, seed=1)
    for kind, what in ((CopyKind.OUT, "to the host"), (CopyKind.IN, "from the host")):
        sources, targets = (blocks, rows) if kind is CopyKind.OUT else (rows, blocks)
        copies = [BlockCopy(kind, *pair) for pair in zip(sources, targets, strict=True)]
        taken = [_take(copier, copies, place.device) for _ in range(REPLAYS + 1)][1:]
        timing = Timing.of([each.device_s for each in taken])
        host_ms = 1e3 * Timing.of([each.host_s for each in taken]).median_s
        rates = Rates(_pinned_gb_s(num_bytes, place.device, kind), NO_PRODUCTS)
        name = f"swap of {swap.num_tokens} tokens {what}, {swap.num_blocks} blocks"
        yield judge(name, timing, Work(num_bytes), rates, host_ms=host_ms)


def build_store(swap: Swap, device: torch.device) -> KVStore:
    """Return a store of as many blocks on the device as on the host."""
    dtype = swap.shape.dtype
    name = str(dtype).removeprefix("torch.")
    layers = build_layers(swap.shape, swap.num_layers)
    facts = ModelFacts("bench", layers, 2, swap.num_tokens, (), name, dtype.itemsize)
    return build_kv_store(
        facts.layout(KVOptions()),
        KVSize(_num_blocks(swap), BLOCK_SIZE, _num_blocks(swap)),
        codec=choose_codec(KVCacheDtype.AUTO, dtype),
        device=device,
    )


def scattered(swap: Swap, seed: int) -> list[int]:
    """Return the blocks of the request, without the null block, by chance."""
    return random.Random(seed).sample(range(1, _num_blocks(swap)), swap.num_blocks)


class _Taken(NamedTuple):
    """The seconds of copies by the device's clock, and those until the host goes on."""

    device_s: float
    host_s: float


def _take(copier: BlockCopier, copies: Sequence[BlockCopy], device: torch.device) -> _Taken:
    began_s = time.perf_counter()
    copier.copy_blocks(copies, ())
    host_s = time.perf_counter() - began_s
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return _Taken(copier.take_copy_time().copy_s, host_s)


def _pinned_gb_s(num_bytes: int, device: torch.device, kind: CopyKind) -> float:
    """Return 10^9 bytes a second of one copy."""
    here = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    source, target = (there, here) if kind is CopyKind.OUT else (here, there)
    copy_s = time_launched(device, lambda: target.copy_(source, non_blocking=True)).median_s
    return num_bytes / copy_s / 1e9


def _num_blocks(swap: Swap) -> int:
    return swap.num_times * swap.num_blocks + 1
