"""Attention as its definition has it, one token after another: the second implementation of the
interface that backends have, which is registered in tests alone.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from quire.models.attention.backend import RegisteredBackend, check_sinks
from quire.models.batch import Batch
from quire.models.config import LayerFacts, LayerFeature
from quire.models.kv.kv_codec import EncodedKV
from quire.models.kv.kv_store import KVStore
from tests.models.attention.exact import Seen, attend_exactly
from tests.models.attention.scene import look, put


@dataclass(frozen=True)
class NaiveAttention:
    """The backend over one store."""

    store: KVStore

    def begin(self, batch: Batch) -> "NaiveStep":
        return NaiveStep(self.store, batch)


@dataclass(frozen=True)
class NaiveStep:
    """One step of it."""

    store: KVStore
    batch: Batch

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        check_sinks(layer, sinks)
        group, index = self.store.layer_tensors[layer.index]
        keys, values = self.store.keys[index], self.store.values[index]
        for token, slot in enumerate(self.batch.slots[group].tolist()):
            put(keys, [slot], self.store.codec.encode(key[token : token + 1]))
            if values is not None:
                put(values, [slot], self.store.codec.encode(value[token : token + 1]))
        outs = []
        spans = zip(self.batch.block_tables[group], pairwise(self.batch.query_starts), strict=True)
        for table, (first, end) in spans:
            for token in range(first, end):
                slots = self._seen(layer, table, int(self.batch.positions[token]))
                seen_keys = self._read(keys, slots, query)
                seen_values = (
                    seen_keys[..., : layer.v_head_size]
                    if values is None
                    else self._read(values, slots, query)
                )
                exact_sinks = None if sinks is None else sinks.double()
                seen = Seen(query[token].double(), seen_keys, seen_values, exact_sinks)
                outs.append(attend_exactly(layer, seen, query.dtype)[0])
        return torch.stack(outs).to(query.dtype)

    def _seen(self, layer: LayerFacts, table: Tensor, position: int) -> list[int]:
        """Return the slots of the positions that a token sees."""
        size = self.store.block_size
        return [
            int(table[other // size]) * size + other % size
            for other in range(position + 1)
            if (layer.window_size is None or position - other < layer.window_size)
            and (
                layer.chunk_size is None
                or position // layer.chunk_size == other // layer.chunk_size
            )
        ]

    def _read(self, kept: EncodedKV, slots: list[int], query: Tensor) -> Tensor:
        """Return what is in the slots, in float64, for each query head."""
        elements = torch.stack([look(kept.elements, slot) for slot in slots])
        scales = kept.scales
        if scales is not None:
            scales = torch.stack([look(scales, slot) for slot in slots])
        out = torch.empty(elements.shape, dtype=self.store.codec.dtype)
        read = self.store.codec.decode(EncodedKV(elements, scales), out)
        return read.double().repeat_interleave(query.shape[1] // read.shape[1], dim=1)


NAIVE = RegisteredBackend(
    features=frozenset(LayerFeature),
    why_not=lambda site: None,
    build=lambda store, site: NaiveAttention(store),
    scratch_bytes=lambda layers, limits, site: 0,
    log_name=lambda site: "naive",
    is_automatic=lambda device_type: True,
)
