"""One step of random sequences for a backend, and what attention must give, token by token in fp64.

Everything in the store that no sequence owns is NaN: a backend that reads it shows at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.cache.layout import build_layout
from quire.models.attention.backend import AttentionBackend
from quire.models.batch import Batch
from quire.models.config import LayerFacts
from quire.models.kv_store import KVStore, build_kv_store
from tests.models.paging import Paging

Backend = Callable[[KVStore], AttentionBackend]


class Span(NamedTuple):
    """A sequence with `num_past` tokens already stored and `num_new` in this step."""

    num_past: int
    num_new: int


@dataclass(frozen=True)
class Shape:
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    window: int | None = None
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    device: str = "cpu"


class Sequence(NamedTuple):
    span: Span
    query: Tensor
    key: Tensor
    value: Tensor


class Scene:
    def __init__(self, shape: Shape, spans: list[Span], seed: int = 0) -> None:
        self.shape = shape
        self.layer = LayerFacts(
            index=1,
            num_kv_heads=shape.num_kv_heads,
            k_width=shape.head_dim,
            v_width=shape.head_dim,
            scale=0.7 * shape.head_dim**-0.5,
            window=shape.window,
        )
        generator = torch.Generator().manual_seed(seed)
        self.sequences = [self._sequence(span, generator) for span in spans]

    def _sequence(self, span: Span, generator: torch.Generator) -> Sequence:
        shape, length = self.shape, sum(span)

        def normal(num_tokens: int, num_heads: int) -> Tensor:
            size = (num_tokens, num_heads, shape.head_dim)
            return torch.randn(size, generator=generator).to(shape.device, shape.dtype)

        query = normal(span.num_new, shape.num_heads)
        key, value = normal(length, shape.num_kv_heads), normal(length, shape.num_kv_heads)
        return Sequence(span, query, key, value)

    def paging(self, seed: int = 0) -> Paging:
        return Paging(
            len(self.sequences),
            max(sum(sequence.span) for sequence in self.sequences),
            block_size=self.shape.block_size,
            seed=seed,
            device=self.shape.device,
        )

    def batch(self, paging: Paging) -> Batch:
        spans = [sequence.span for sequence in self.sequences]
        return paging.batch([(i, s.num_past, [0] * s.num_new) for i, s in enumerate(spans)])

    def store(self, paging: Paging) -> KVStore:
        """Two layers, filled with NaN but for the past of every sequence in layer 1."""
        store = build_kv_store(
            build_layout([self.layer.kv_spec(self.shape.dtype.itemsize)] * 2),
            num_blocks=paging.num_blocks,
            block_size=self.shape.block_size,
            dtype=self.shape.dtype,
            device=torch.device(self.shape.device),
        )
        for tensor in store.keys + store.values:
            tensor.fill_(torch.nan)
        for i, (span, _, key, value) in enumerate(self.sequences):
            for position in range(span.num_past):
                block, offset = divmod(paging.slot(i, position), self.shape.block_size)
                store.keys[1][block, offset] = key[position]
                store.values[1][block, offset] = value[position]
        return store

    def run(self, backend: Backend, paging: Paging, store: KVStore) -> Tensor:
        """The step through a backend, its inputs laid out as transformers lays them out."""
        new = [
            (s.query, s.key[s.span.num_past :], s.value[s.span.num_past :]) for s in self.sequences
        ]
        query, key, value = (torch.cat(parts) for parts in zip(*new, strict=True))
        query = query.transpose(0, 1).contiguous().transpose(0, 1)
        return backend(store).begin(self.batch(paging)).attend(self.layer, query, key, value)

    def expected(self) -> Tensor:
        return torch.cat([self._attend(sequence) for sequence in self.sequences])

    def _attend(self, sequence: Sequence) -> Tensor:
        span, *tensors = sequence
        query, key, value = (tensor.double().cpu() for tensor in tensors)
        group = self.shape.num_heads // self.shape.num_kv_heads
        key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
        out = torch.empty_like(query)
        for token in range(span.num_new):
            end = span.num_past + token + 1
            begin = max(0, end - (self.shape.window or end))
            scores = (key[begin:end] * query[token]).sum(-1) * self.layer.scale
            weights = scores.softmax(0)[:, :, None]
            out[token] = (weights * value[begin:end]).sum(0)
        return out
