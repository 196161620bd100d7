"""Attention on any device: gather each sequence's keys and values, then torch's own kernel.

One-token chunks are padded together in buckets, the query heads of a K/V head folded into the rows
that share it; longer chunks go one by one. A chunk without earlier context needs no gather.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from quire.models.attention.plan import DecodeBucket, Plan, Tile, build_plan
from quire.models.batch import Batch
from quire.models.config import LayerFacts
from quire.models.kv_store import KVStore, Workspace


@dataclass(frozen=True, slots=True)
class ReferenceAttention:
    store: KVStore
    workspace: Workspace = field(default_factory=Workspace)

    def begin(self, batch: Batch) -> "ReferenceStep":
        return ReferenceStep(self.store, self.workspace, batch)


@dataclass(slots=True)
class ReferenceStep:
    """One step. Layers of one group with the same window share one plan."""

    store: KVStore
    workspace: Workspace
    batch: Batch
    plans: dict[tuple[int, int | None], Plan] = field(default_factory=dict)

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        group = self.store.group(layer.index)
        self.store.write(layer.index, key, value, self.batch.slots[group])
        plan = self._plan(group, layer.window, query.dtype)
        if plan.is_one_bucket:
            return self._decode(layer, plan.buckets[0], query)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for bucket in plan.buckets:
            out[bucket.rows] = self._decode(layer, bucket, query[bucket.rows])
        for chunk in plan.chunks:
            keys, values = key[chunk.rows], value[chunk.rows]
            if chunk.slots is not None:
                keys, values = self.store.read(layer.index, chunk.slots, self.workspace)
            for tile in chunk.tiles:
                seen = (keys[tile.keys], values[tile.keys])
                out[tile.rows] = _attend_tile(layer, tile, query[tile.rows], seen)
        return out

    def _plan(self, group: int, window: int | None, dtype: torch.dtype) -> Plan:
        if window is not None and window >= max(self.batch.context_lens):
            window = None
        if (group, window) not in self.plans:
            self.plans[group, window] = build_plan(
                self.batch, self.store.block_size, group=group, window=window, dtype=dtype
            )
        return self.plans[group, window]

    def _decode(self, layer: LayerFacts, bucket: DecodeBucket, query: Tensor) -> Tensor:
        keys, values = self.store.read(layer.index, bucket.slots, self.workspace)
        seqs, heads, dim = len(query), layer.num_kv_heads, layer.k_width
        out = scaled_dot_product_attention(
            query.reshape(seqs, heads, -1, dim),
            keys.reshape(seqs, -1, heads, dim).transpose(1, 2),
            values.reshape(seqs, -1, heads, dim).transpose(1, 2),
            attn_mask=bucket.mask,
            scale=layer.scale,
        )
        return out.flatten(1, 2)


def _attend_tile(layer: LayerFacts, tile: Tile, query: Tensor, kv: tuple[Tensor, Tensor]) -> Tensor:
    keys, values = kv
    out = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=tile.mask,
        is_causal=tile.mask is None,
        scale=layer.scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
