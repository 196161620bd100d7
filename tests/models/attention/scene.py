"""One step of random sequences for a backend, and what attention must give, token by token.

Everything in the store that no query of the step can see is NaN, and block table entries that none
can see are rubbish: a backend that reads either shows at once.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from quire.cache.layout import Layout
from quire.models.attention.backend import AttentionBackend, AttentionStep
from quire.models.batch import Batch
from quire.models.config import KVCacheDtype, KVOptions, KVSize, LayerFacts, ModelFacts
from quire.models.kv.kv_codec import Codec, EncodedKV, choose_codec
from quire.models.kv.kv_store import KVStore, build_kv_store
from tests.models.attention.exact import Seen, attend_exactly
from tests.models.paging import Paging
from tests.models.rounding import Exact

Backend = Callable[[KVStore], AttentionBackend]

RUBBISH = 2**31 - 1


class Span(NamedTuple):
    """A sequence with `num_past` tokens already stored and `num_new` in this step."""

    num_past: int
    num_new: int


@dataclass(frozen=True)
class Shape:
    """Three layers, of which `index` is run: 0 sees everything, 1 and 2 what `window_size` or
    `chunk_size` says. If there is one of these, each layer is in a group of its own, unless
    `hybrid` is false. `head_dim` is the K width. Layer 0 has `num_parts` times as many K/V heads:
    the others, if they are in groups of their own, lie so many to a cache tensor. If it `shares`,
    layer 2 attends over the K and V of layer 1."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    v_head_size: int = 32
    window_size: int | None = None
    chunk_size: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    is_latent: bool = False
    kept_as: KVCacheDtype = KVCacheDtype.AUTO
    hybrid: bool = True
    index: int = 1
    num_parts: int = 1
    shares: bool = False
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def layers(self) -> tuple[LayerFacts, ...]:
        wide = LayerFacts(
            index=0,
            num_kv_heads=self.num_kv_heads * self.num_parts,
            head_size=self.head_dim,
            v_head_size=self.v_head_size,
            scale=0.7 * self.head_dim**-0.5,
            softcap=self.softcap,
            has_sinks=self.has_sinks,
            is_latent=self.is_latent,
        )
        seen = replace(wide, window_size=self.window_size, chunk_size=self.chunk_size)
        narrow = replace(seen, index=1, num_kv_heads=self.num_kv_heads)
        return wide, narrow, replace(narrow, index=2, kv_source=1 if self.shares else None)

    @property
    def layout(self) -> Layout:
        facts = ModelFacts("scene", self.layers, 2, 1000, (), "any", self.dtype.itemsize)
        return facts.layout(KVOptions(self.kept_as, self.hybrid))

    @property
    def codec(self) -> Codec:
        return choose_codec(self.kept_as, self.dtype)


class Sequence(NamedTuple):
    span: Span
    query: Tensor
    key: Tensor
    value: Tensor


class Scene:
    def __init__(self, shape: Shape, spans: list[Span], seed: int = 0) -> None:
        self.shape = shape
        self.layer = shape.layers[shape.index]
        self.layout = shape.layout
        self.table, self.place = self._store(1).layer_tensors[self.layer.index]
        generator = torch.Generator().manual_seed(seed)
        self.sequences = [self._sequence(span, generator) for span in spans]
        self.sinks: Tensor | None = None
        if shape.has_sinks:
            sinks = 2 * torch.randn(shape.num_heads, generator=generator)
            self.sinks = sinks.to(shape.device, shape.dtype)

    def _sequence(self, span: Span, generator: torch.Generator) -> Sequence:
        shape, length, num_kv_heads = self.shape, sum(span), self.layer.num_kv_heads

        def normal(num_tokens: int, num_heads: int, width: int) -> Tensor:
            size = (num_tokens, num_heads, width)
            return torch.randn(size, generator=generator).to(shape.device, shape.dtype)

        query = normal(span.num_new, shape.num_heads, shape.head_dim)
        key = normal(length, num_kv_heads, shape.head_dim)
        if shape.is_latent:
            return Sequence(span, query, key, key[..., : shape.v_head_size])
        return Sequence(span, query, key, normal(length, num_kv_heads, shape.v_head_size))

    def paging(self, seed: int = 0) -> Paging:
        paging = Paging(
            len(self.sequences),
            max(sum(sequence.span) for sequence in self.sequences),
            block_size=self.shape.block_size,
            seed=seed,
            tables=self.layout.tables,
        )
        return paging.on(self.shape.device)

    def batch(self, paging: Paging) -> Batch:
        spans = [sequence.span for sequence in self.sequences]
        batch = paging.batch([(i, s.num_past, [0] * s.num_new) for i, s in enumerate(spans)])
        rubbish = random.Random(len(spans))
        for form, table in zip(self.layout.tables, batch.block_tables, strict=True):
            pattern = self.layout.groups[form.group].pattern
            for (num_past, num_new), row in zip(spans, table, strict=True):
                first = pattern.first_needed(num_past) // self.shape.block_size
                end = -(-(num_past + num_new) // self.shape.block_size)
                for unseen in (row[:first], row[end:]):
                    ids = rubbish.choices([0, -1, paging.num_blocks - 1, RUBBISH], k=len(unseen))
                    unseen[:] = torch.tensor(ids, dtype=row.dtype)
        return batch

    def store(self, paging: Paging) -> KVStore:
        """All layers, filled with NaN but for the past that this one's sequences can see."""
        store = self.empty_store(paging)
        for tensor in store.tensors:
            tensor.fill_(torch.nan if tensor.is_floating_point() else 77)
        self.fill(store, paging)
        return store

    def empty_store(self, paging: Paging) -> KVStore:
        return self._store(paging.num_blocks)

    def _store(self, num_blocks: int) -> KVStore:
        return build_kv_store(
            self.layout,
            KVSize(num_blocks, self.shape.block_size),
            codec=self.shape.codec,
            device=torch.device(self.shape.device),
        )

    def fill(self, store: KVStore, paging: Paging) -> None:
        keys, values = store.keys[self.place], store.values[self.place]
        for i, (span, _, key, value) in enumerate(self.sequences):
            past = range(self.layer.pattern.first_needed(span.num_past), span.num_past)
            if not past:
                continue
            slots = [paging.slot(i, position, self.table) for position in past]
            put(keys, slots, store.codec.encode(key[past.start : past.stop]))
            if values is not None:
                put(values, slots, store.codec.encode(value[past.start : past.stop]))

    def run(self, backend: Backend, paging: Paging, store: KVStore) -> Tensor:
        return self.attend(backend(store).begin(self.batch(paging)))

    def attend(self, step: AttentionStep) -> Tensor:
        """This layer's part of a step."""
        return step.attend(self.layer, *self.inputs(), self.sinks)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The step's query, key and value, laid out as transformers lays them out."""
        new = [
            (s.query, s.key[s.span.num_past :], s.value[s.span.num_past :]) for s in self.sequences
        ]
        query, key, value = (torch.cat(parts) for parts in zip(*new, strict=True))
        return query.transpose(0, 1).contiguous().transpose(0, 1), key, value

    def kept(self, tensor: Tensor) -> Tensor:
        """As the store gives it back."""
        codec = self.shape.codec
        return codec.decode(codec.encode(tensor), torch.empty_like(tensor))

    def expected(self) -> Exact:
        """What attention gives, and what a backend's may differ from it by rounding."""
        found = [self._attend(sequence) for sequence in self.sequences]
        out, error = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Exact(out, error)

    def _attend(self, sequence: Sequence) -> Exact:
        span, query, key, value = sequence
        key, value = self.kept(key), self.kept(value)
        if self.layer.is_latent:
            value = key[..., : self.layer.v_head_size]
        group = self.shape.num_heads // self.layer.num_kv_heads
        key, value = (each.double().repeat_interleave(group, dim=1) for each in (key, value))
        sinks = None if self.sinks is None else self.sinks.double()
        found = []
        for token in range(span.num_new):
            end = span.num_past + token + 1
            at = slice(self._first_seen(end - 1), end)
            seen = Seen(query[token].double(), key[at], value[at], sinks)
            found.append(attend_exactly(self.layer, seen, self.shape.dtype))
        out, error = (torch.stack(parts) for parts in zip(*found, strict=True))
        return Exact(out, error)

    def _first_seen(self, position: int) -> int:
        """The first of the positions, one after the other, that a query sees."""
        window, chunk = self.layer.window_size, self.layer.chunk_size
        of_window = 0 if window is None else max(0, position - window + 1)
        return max(of_window, 0 if chunk is None else position - position % chunk)


class UnroundedScene(Scene):
    """As a backend has it that multiplies scores and weights by the scales of what is kept, and so
    does not round numbers times scales to 16 bits."""

    def kept(self, tensor: Tensor) -> Tensor:
        if not self.shape.codec.is_quantised:
            return tensor
        wide = choose_codec(self.shape.kept_as, torch.float32)
        return wide.decode(self.shape.codec.encode(tensor), torch.empty_like(tensor).float())


def put(kept: EncodedKV, slots: list[int], tokens: EncodedKV) -> None:
    """The naive write, a token a slot, that a backend's own is measured against."""
    for tensor, new in zip(kept, tokens, strict=True):
        if tensor is not None and new is not None:
            blocks, offsets = zip(*(_place(tensor, slot) for slot in slots), strict=True)
            tensor[list(blocks), list(offsets)] = new


def look(tensor: Tensor, slot: int) -> Tensor:
    """The naive read: one position, which must exist."""
    block, offset = _place(tensor, slot)
    return tensor[block, offset]


def _place(tensor: Tensor, slot: int) -> tuple[int, int]:
    num_blocks, block_size = tensor.shape[:2]
    if not 0 <= slot < num_blocks * block_size:
        raise IndexError(f"slot {slot} of {num_blocks} blocks of {block_size}")
    return divmod(slot, block_size)
