"""Attention on any device: it gathers each sequence's keys and values, then attends over them.

One-token chunks are padded together in buckets, the query heads of a K/V head folded into the rows
that share it; longer chunks are computed one by one. A chunk without earlier context needs no
gather, unless the store quantises.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from quire.models.attention.backend import AttentionSetup, RegisteredBackend, check_sinks
from quire.models.attention.plan import AttentionPlans, DecodeBucket, TiledChunk
from quire.models.attention.scratch import StepKind, StepLimits, scratch_bytes
from quire.models.attention.softmax import (
    attend_fused,
    attend_plainly,
    decode_fused,
    same_size,
)
from quire.models.batch import Batch
from quire.models.config import LayerFacts, LayerFeature
from quire.models.kv.kv_store import GatherWorkspace, KVStore


@dataclass(frozen=True, slots=True)
class ReferenceAttention:
    """The attention backend in plain torch, which every other one is compared with.

    is_eager: the softmax of every layer is written out in float32, also where a fused kernel could
        compute it: slower, and what the fused ones are compared with.
    """

    store: KVStore
    workspace: GatherWorkspace = field(default_factory=GatherWorkspace)
    is_eager: bool = False

    def begin(self, batch: Batch) -> "ReferenceStep":
        codec = self.store.codec
        plans = AttentionPlans(
            batch,
            self.store.block_size,
            codec.dtype,
            reads_back=codec.is_quantised,
            is_eager=self.is_eager,
        )
        return ReferenceStep(self.store, self.workspace, plans)


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """One step of `ReferenceAttention`."""

    store: KVStore
    workspace: GatherWorkspace
    plans: AttentionPlans

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        check_sinks(layer, sinks)
        table = self.store.table(layer.index)
        if not layer.shares_kv:
            self.store.write(layer.index, key, value, self.plans.batch.slots[table])
        plan = self.plans.get(table, layer)
        call = _Call(layer, self.store, self.workspace, self.plans.is_plain(layer), sinks)
        if plan.is_one_bucket:
            return call.decode(plan.buckets[0], query)
        out = query.new_empty(len(query), query.shape[1], layer.v_head_size)
        for bucket in plan.buckets:
            out[bucket.rows] = call.decode(bucket, query[bucket.rows])
        for chunk in plan.chunks:
            call.attend_chunk(chunk, query, (key, value), out)
        return out


@dataclass(slots=True)
class _Call:
    """One layer's attention within a step."""

    layer: LayerFacts
    store: KVStore
    workspace: GatherWorkspace
    is_plain: bool
    sinks: Tensor | None

    def decode(self, bucket: DecodeBucket, query: Tensor) -> Tensor:
        keys, values = self._seen(bucket.slots)
        keys = keys.view(len(query), -1, *keys.shape[1:])
        values = values.view(len(query), -1, *values.shape[1:])
        if not self.is_plain:
            return decode_fused(self.layer, query, (keys, values), bucket.mask)
        rows = query[:, None]
        return attend_plainly(self.layer, rows, (keys, values), bucket.mask, self.sinks)[:, 0]

    def attend_chunk(
        self, chunk: TiledChunk, query: Tensor, new: tuple[Tensor, Tensor], out: Tensor
    ) -> None:
        if chunk.slots is not None:
            keys, values = self._seen(chunk.slots)
        else:
            keys, values = self._ready(new[0][chunk.rows], new[1][chunk.rows])
        for tile in chunk.tiles:
            rows, kv = query[None, tile.rows], (keys[None, tile.keys], values[None, tile.keys])
            if self.is_plain:
                seen = attend_plainly(self.layer, rows, kv, tile.mask, self.sinks)
            else:
                seen = attend_fused(self.layer, rows, kv, tile.mask)
            out[tile.rows] = seen[0]

    def _seen(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        return self._ready(*self.store.read(self.layer.index, slots, self.workspace))

    def _ready(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values in the form that the kernel of this call takes."""
        if not self.is_plain:
            return same_size(self.layer, keys, values)
        return keys, keys if self.layer.is_latent else values


def _scratch_bytes(
    layers: Sequence[LayerFacts], limits: StepLimits, site: AttentionSetup, *, is_eager: bool
) -> int:
    codec = site.codec
    kind = StepKind(codec.dtype, codec.is_quantised, is_eager, site.device.type)
    return scratch_bytes(layers, limits, kind)


REFERENCE = RegisteredBackend(
    features=frozenset(LayerFeature),
    why_not=lambda site: None,
    build=lambda store, site: ReferenceAttention(store),
    scratch_bytes=partial(_scratch_bytes, is_eager=False),
    log_name=lambda site: "reference",
    is_automatic=lambda device_type: True,
)
EAGER = RegisteredBackend(
    features=frozenset(LayerFeature),
    why_not=lambda site: None,
    build=lambda store, site: ReferenceAttention(store, is_eager=True),
    scratch_bytes=partial(_scratch_bytes, is_eager=True),
    log_name=lambda site: "eager",
    is_automatic=lambda device_type: False,
)
