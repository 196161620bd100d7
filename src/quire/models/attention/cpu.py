"""Attention by the C++ kernel, which writes K and V and attends over block tables in place: nothing
is gathered. The model computes in float32 or bfloat16; K and V are stored so, or in one byte each.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quire.models.attention.backend import (
    AttentionSetup,
    RegisteredBackend,
    check_sinks,
    dense_rows,
)
from quire.models.attention.scratch import StepLimits
from quire.models.batch import Batch
from quire.models.config import LayerFacts, LayerFeature
from quire.models.kv.kv_codec import Codec
from quire.models.kv.kv_store import GatherWorkspace, KVStore
from quire.models.native import Library, library

NUMBERS = {torch.int8: 1, torch.float8_e4m3fn: 2}
"""`Number` of native/attention/numbers.h: how a quantised store keeps K and V. 0 means that they
are stored as computed."""


@dataclass(frozen=True, slots=True)
class CPUAttention:
    """The attention backend of the C++ kernels, for stores that `why_not` accepts.

    calls: the structure of each layer, with the fields that stay the same from step to step.
    """

    store: KVStore
    library: Library
    workspace: GatherWorkspace = field(default_factory=GatherWorkspace)
    calls: dict[int, ctypes.Structure] = field(default_factory=dict)

    def begin(self, batch: Batch) -> "CPUStep":
        return CPUStep(self, batch)

    def call(self, layer: LayerFacts) -> ctypes.Structure:
        """Return the structure of a layer; what stays the same in all steps is filled in once."""
        known = self.calls.get(layer.index)
        if known is not None:
            return known
        _, index = self.store.layer_tensors[layer.index]
        keys, values = self.store.keys[index], self.store.values[index]
        call = _call(layer, self.store.codec, self.library)
        call.keys, call.key_scales = keys.elements.data_ptr(), _address(keys.scales)
        if values is not None:
            call.values, call.value_scales = values.elements.data_ptr(), _address(values.scales)
        call.num_blocks, call.block_size = len(keys.elements), self.store.block_size
        self.calls[layer.index] = call
        return call


def why_not(site: AttentionSetup) -> str | None:
    """Return why the kernel cannot run there, in words, or None if it can."""
    if site.device.type != "cpu":
        return f"it runs on CPUs, not on {site.device.type}"
    if site.codec.dtype not in (torch.float32, torch.bfloat16):
        return f"it has no {site.codec.dtype}"
    return "its C++ kernels were not built: see the log" if library() is None else None


def _library(site: AttentionSetup) -> Library:
    built = library()
    assert built is not None, "only where it can run"
    return built.without(site.disabled)


CPU = RegisteredBackend(
    features=frozenset({LayerFeature.SOFTCAP, LayerFeature.SINKS, LayerFeature.LATENT}),
    why_not=why_not,
    build=lambda store, site: CPUAttention(store, _library(site)),
    scratch_bytes=lambda layers, limits, site: cpu_scratch_bytes(
        layers, limits, site.codec, _library(site)
    ),
    log_name=lambda site: f"cpu ({_library(site).isa})",
    is_automatic=lambda device_type: device_type == "cpu",
)


def cpu_scratch_bytes(
    layers: Sequence[LayerFacts], limits: StepLimits, codec: Codec, library: Library
) -> int:
    """Return an upper bound of the kernel's allocations in a step; layers share the memory."""
    count = library.function("quire_attend_most_scratch")
    most = 0
    for layer in layers:
        call = _call(layer, codec, library)
        call.num_tokens, call.num_threads = limits.max_num_batched_tokens, library.num_threads
        call.table_columns, call.block_size = limits.max_model_len, 1
        most = max(most, count(call))
    return most


def _call(layer: LayerFacts, codec: Codec, library: Library) -> ctypes.Structure:
    """Return the structure of a layer without any memory or tokens."""
    return library.struct("AttentionCall")(
        kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        v_head_size=layer.v_head_size,
        window_size=layer.window_size or 0,
        chunk_size=layer.chunk_size or 0,
        is_bf16=codec.dtype is torch.bfloat16,
        number=NUMBERS[codec.number] if codec.is_quantised else 0,
        scale=layer.scale,
        softcap=layer.softcap or 0.0,
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class CPUStep:
    """One step of `CPUAttention`. It keeps alive the tensors whose addresses its calls hold.

    tables: for each block table the addresses of its slots and rows, its row stride and its number
        of columns.
    """

    def __init__(self, backend: CPUAttention, batch: Batch) -> None:
        self.backend = backend
        self.query_starts = (ctypes.c_int64 * len(batch.query_starts))(*batch.query_starts)
        self.context_lens = (ctypes.c_int64 * len(batch.context_lens))(*batch.context_lens)
        self.tables = [
            (slots.data_ptr(), table.data_ptr(), table.stride(0), table.shape[1])
            for slots, table in zip(batch.slots, batch.block_tables, strict=True)
        ]
        self._batch = batch
        self._scratch_bytes: dict[tuple[int, ...], int] = {}
        self._attend = backend.library.function("quire_attend")

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        check_sinks(layer, sinks)
        query, key, value = (dense_rows(tensor) for tensor in (query, key, value))
        given = (("query", query), ("key", key), ("value", value))
        call = self.backend.call(layer)
        out = query.new_empty(len(query), query.shape[1], layer.v_head_size)
        for name, tensor in given[:1] if layer.shares_kv else given:
            setattr(call, name, tensor.data_ptr())
            setattr(call, f"{name}_token_stride", tensor.stride(0))
            setattr(call, f"{name}_head_stride", tensor.stride(1))
        call.out, call.heads = out.data_ptr(), query.shape[1]
        logits = None if sinks is None else sinks.float().contiguous()
        call.sinks = None if logits is None else logits.data_ptr()
        self._set_batch(call, self.backend.store.table(layer.index))
        scratch = self._scratch(call, out)
        call.scratch = scratch.data_ptr()
        if self._attend(call):
            raise IndexError(f"a slot or block of layer {layer.index} lies outside its store")
        return out

    def _set_batch(self, call: ctypes.Structure, table: int) -> None:
        call.slots, call.table, call.table_stride, call.table_columns = self.tables[table]
        call.num_tokens, call.num_seqs = len(self._batch.positions), len(self.context_lens)
        call.query_starts = ctypes.addressof(self.query_starts)
        call.context_lens = ctypes.addressof(self.context_lens)
        call.num_threads = self.backend.library.num_threads

    def _scratch(self, call: ctypes.Structure, like: Tensor) -> Tensor:
        """Return the scratch memory of a call; layers of equal shapes need equally much."""
        key = (
            call.heads,
            call.kv_heads,
            call.head_size,
            call.v_head_size,
            call.window_size,
            call.chunk_size,
        )
        if key not in self._scratch_bytes:
            count = self.backend.library.function("quire_attend_scratch")
            self._scratch_bytes[key] = count(call)
        size = self._scratch_bytes[key]
        return self.backend.workspace.take(like, torch.uint8, (size,))[0]
