"""Steps of attention over bfloat16 queries of a Llama 8B layer, for chunks of any lengths: what is
read and computed at least, and the tensors."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.cpu_attention import LLAMA, Shape, build_layers
from bench.gpu.speed.floor import Work
from bench.gpu.speed.timing import Call, cache_bytes, num_buffers
from quire.models.attention.backend import AttentionBackend
from quire.models.batch import Batch
from quire.models.config import (
    SCALE_BYTES,
    KVCacheDtype,
    KVOptions,
    KVSize,
    LayerFacts,
    ModelFacts,
)
from quire.models.kv.kv_codec import choose_codec
from quire.models.kv.kv_store import KVStore, build_kv_store

BLOCK_SIZE = 16

Chunk = tuple[int, int]
"""A context's length in tokens, this step's included, and how many of them this step computes."""


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """One layer's attention in a step of `chunks`, over K and V kept as `kept_as`."""

    name: str
    chunks: tuple[Chunk, ...]
    kept_as: KVCacheDtype = KVCacheDtype.AUTO
    shape: Shape = LLAMA

    @property
    def num_tokens(self) -> int:
        return sum(num_new for _, num_new in self.chunks)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the K and V of all contexts."""
        row_bytes = self.shape.width * self.shape.dtype.itemsize
        if self.kept_as.is_quantised:
            row_bytes = self.shape.width + SCALE_BYTES
        return 2 * sum(length for length, _ in self.chunks) * self.shape.num_kv_heads * row_bytes

    @property
    def work(self) -> Work:
        """Read K and V once, and queries; write the output; multiply with what is seen alone."""
        row_bytes = self.shape.num_heads * self.shape.width * self.shape.dtype.itemsize
        num_seen = sum(num_new * (2 * length - num_new + 1) // 2 for length, num_new in self.chunks)
        num_flops = 4 * num_seen * self.shape.num_heads * self.shape.width
        return Work(self.kv_bytes + 2 * self.num_tokens * row_bytes, num_flops)


def build_layers_for(case: AttentionCase, device: torch.device) -> tuple[LayerFacts, ...]:
    """Return so many layers that none finds its K and V in a cache when its turn comes again."""
    return build_layers(case.shape, num_buffers(case.kv_bytes, cache_bytes(device)))


def build_store(
    case: AttentionCase, layers: tuple[LayerFacts, ...], device: torch.device
) -> KVStore:
    """Return a store with random K and V for the contexts of a case."""
    dtype = case.shape.dtype
    longest = max(length for length, _ in case.chunks)
    name = str(dtype).removeprefix("torch.")
    facts = ModelFacts("bench", layers, 2, longest, (), name, dtype.itemsize)
    store = build_kv_store(
        facts.layout(KVOptions(case.kept_as)),
        KVSize(1 + sum(_num_blocks(case)), BLOCK_SIZE),
        codec=choose_codec(case.kept_as, dtype),
        device=device,
    )
    for encoded in (*store.keys, *store.values):
        if encoded is not None:
            _fill(encoded.elements)
            if encoded.scales is not None:
                encoded.scales.fill_(0.01)
    return store


def _fill(elements: Tensor) -> None:
    """Make up finite numbers: of fp8 the bytes, of which some that are negative are NaN."""
    if elements.element_size() == 1:
        elements.view(torch.int8).random_(0, 90)
    else:
        elements.normal_()


def build_batch(case: AttentionCase, device: torch.device) -> Batch:
    """Return the step's tensors. Blocks are shuffled, and none is the null block."""
    counts = _num_blocks(case)
    ids = list(range(1, sum(counts) + 1))
    random.Random(0).shuffle(ids)
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    positions, slots, starts = [], [], [0]
    for row, (length, num_new) in enumerate(case.chunks):
        table[row, : counts[row]] = torch.tensor(ids[: counts[row]])
        del ids[: counts[row]]
        new = torch.arange(length - num_new, length)
        positions.append(new)
        slots.append(table[row, new // BLOCK_SIZE].long() * BLOCK_SIZE + new % BLOCK_SIZE)
        starts.append(starts[-1] + num_new)
    return Batch(
        input_ids=torch.zeros(starts[-1], dtype=torch.int64, device=device),
        positions=torch.cat(positions).to(device),
        slots=(torch.cat(slots).to(device),),
        block_tables=(table.to(device),),
        query_starts=tuple(starts),
        context_lens=tuple(length for length, _ in case.chunks),
        logits_indices=torch.zeros(0, dtype=torch.int64, device=device),
    )


def build_calls(
    case: AttentionCase,
    backend: AttentionBackend,
    layers: tuple[LayerFacts, ...],
    device: torch.device,
) -> list[Call]:
    """Return a call for each layer of one step, which writes its K and V and attends."""
    batch, shape = build_batch(case, device), case.shape
    query, key, value = (
        torch.randn(len(batch.positions), heads, shape.width, dtype=shape.dtype, device=device)
        for heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    )
    step = backend.begin(batch)

    def call(layer: LayerFacts) -> Call:
        return lambda: step.attend(layer, query, key, value)

    return [call(layer) for layer in layers]


def _num_blocks(case: AttentionCase) -> list[int]:
    return [-(-length // BLOCK_SIZE) for length, _ in case.chunks]
