"""Attention by Triton's kernels, on GPUs from Ampere on: K and V are written and attended to over
block tables in place. Contexts of chunks of one token are shared among as many programs as a device
runs at once, by a list that is made on the device.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quire.models.attention.backend import check_sinks, dense_rows
from quire.models.attention.triton.chunk_kernel import attend_chunks
from quire.models.attention.triton.combine_kernel import combine
from quire.models.attention.triton.fresh import attend_fresh, is_fresh, takes
from quire.models.attention.triton.inputs import StepInputs, step_inputs
from quire.models.attention.triton.launch import Form
from quire.models.attention.triton.list_kernel import count_tiles
from quire.models.attention.triton.tiles import Device, Tile
from quire.models.attention.triton.token_kernel import attend_tokens
from quire.models.attention.triton.write_kernel import write
from quire.models.batch import Batch
from quire.models.config import LayerFacts
from quire.models.kv.kv_store import KVStore

LOG2_E = math.log2(math.e)
MAX_ROWS = 2**31
"""Kernels count the vectors of a store's tensor, blocks x block size x K/V heads, in int32."""


@dataclass(frozen=True, slots=True)
class TritonAttention:
    """The attention backend of Triton's kernels, for stores and devices that `why_not` accepts.

    uses_flash: plain layers of steps without earlier context are PyTorch's flash attention, where
        `why_not_fresh` says nothing.

    Raises ValueError where a tensor of the store has over MAX_ROWS vectors.
    """

    store: KVStore
    device: Device
    uses_flash: bool = False

    def __post_init__(self) -> None:
        most = max(keys.elements[..., 0].numel() for keys in self.store.keys)
        if most > MAX_ROWS:
            raise ValueError(
                f"{most} keys of a layer are too many for Triton's kernels, which count {MAX_ROWS};"
                " a smaller --num-gpu-blocks-override is right"
            )

    def begin(self, batch: Batch) -> "TritonStep":
        return TritonStep(self, step_inputs(batch), self.uses_flash and is_fresh(batch))

    def over(self, inputs: StepInputs) -> "TritonStep":
        return TritonStep(self, inputs)


@dataclass(frozen=True, slots=True)
class TritonStep:
    """One step of `TritonAttention`.

    uses_flash: plain layers are PyTorch's flash attention, for no token has earlier context.
    lists: the work lists so far, by what they follow from, each with the layer that has it made. It
    is made again when that layer attends again: then a launch goes over new numbers.
    """

    backend: TritonAttention
    inputs: StepInputs
    uses_flash: bool = False
    lists: dict[tuple[object, ...], tuple[int, Tensor]] = field(default_factory=dict)

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
        store = self.backend.store
        form = Form(layer, query.shape[1], store.codec, store.block_size, self.backend.device)
        self._write(form, key, value)
        if self.uses_flash and takes(layer, store.codec):
            return attend_fresh(layer, self.inputs, query, key, value)
        out = query.new_empty(len(query), query.shape[1], layer.v_head_size)
        call = _Call(self, form, query, sinks, out)
        if self.inputs.bounds.has_longer:
            call.attend_longer()
        if self.inputs.bounds.has_singles:
            call.attend_singles()
        return out

    def store(self, layer: LayerFacts, num_heads: int, key: Tensor, value: Tensor) -> None:
        """Write the keys and values of the step's tokens to their slots, as `attend` does first."""
        store, device = self.backend.store, self.backend.device
        form = Form(layer, num_heads, store.codec, store.block_size, device)
        self._write(form, dense_rows(key), dense_rows(value))

    def _write(self, form: Form, key: Tensor, value: Tensor) -> None:
        group, index = self.backend.store.layer_tensors[form.layer.index]
        keys, values = self.backend.store.keys[index], self.backend.store.values[index]
        num_rows = len(key) * form.layer.num_kv_heads
        write[(-(-num_rows // form.write_rows),)](
            key,
            value,
            keys.elements,
            None if values is None else values.elements,
            keys.scales,
            None if values is None else values.scales,
            self.inputs.slots[group],
            len(key),
            *key.stride()[:2],
            *value.stride()[:2],
            **form.write_constants(),
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """One layer's attention within a step. What is allocated here is the step's own: a workspace
    that grew would leave launches captured earlier without theirs."""

    step: TritonStep
    form: Form
    query: Tensor
    sinks: Tensor | None
    out: Tensor

    def attend_longer(self) -> None:
        inputs, form = self.step.inputs, self.form
        tile = form.tile(inputs.bounds.longest_chunk)
        num_seqs = len(inputs.context_lens)
        grid = (len(self.query) // form.tokens(tile) + num_seqs, form.num_head_tiles(tile))
        attend_chunks[grid](
            *self._sources,
            self.out,
            *self._numbers,
            num_seqs,
            *self._strides,
            **form.chunk_constants(tile),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )

    def attend_singles(self) -> None:
        inputs, form = self.step.inputs, self.form
        tile = form.tile(1)
        num_seqs = len(inputs.context_lens)
        if not form.is_shared(inputs.bounds.max_context):
            grid = (num_seqs, form.num_head_tiles(tile))
            self._attend_tokens(tile, grid, (None, None, None))
            return
        counts = self._counts(tile)
        num_programs = form.num_programs(tile)
        shape = (2 * num_programs, form.heads(tile))
        sums = self.out.new_empty(*shape, form.layer.v_head_size, dtype=torch.float32)
        log_sums = self.out.new_empty(shape, dtype=torch.float32)
        self._attend_tokens(tile, (num_programs,), (sums, log_sums, counts))
        combine[(num_seqs, form.num_heads)](
            sums,
            log_sums,
            self.sinks,
            self.out,
            counts,
            inputs.query_starts,
            num_seqs,
            **form.combine_constants(tile),
        )

    def _counts(self, tile: Tile) -> Tensor:
        """Return the work list, which layers share that see alike."""
        inputs, form, lists = self.step.inputs, self.form, self.step.lists
        constants = form.list_constants(tile)
        key = (form.num_programs(tile), *constants.values())
        maker, counts = lists.get(key, (form.layer.index, None))
        if counts is not None and maker != form.layer.index:
            return counts
        counts = inputs.context_lens.new_empty(len(inputs.context_lens) + 2)
        min_tiles = -(-form.device.min_split_keys // tile.keys)
        count_tiles[(1,)](
            inputs.query_starts,
            inputs.context_lens,
            counts,
            len(inputs.context_lens),
            form.num_programs(tile),
            min_tiles,
            **constants,
        )
        lists[key] = form.layer.index, counts
        return counts

    def _attend_tokens(
        self, tile: Tile, grid: tuple[int, ...], parts: tuple[Tensor | None, ...]
    ) -> None:
        attend_tokens[grid](
            *self._sources,
            self.out,
            *parts,
            *self._numbers,
            len(self.step.inputs.context_lens),
            *self._strides,
            **self.form.token_constants(tile, is_shared=parts[0] is not None),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )

    @property
    def _sources(self) -> tuple[Tensor | None, ...]:
        """Return queries, elements, scales and sinks, as the kernels take them."""
        store = self.step.backend.store
        _, index = store.layer_tensors[self.form.layer.index]
        keys = store.keys[index]
        values = store.values[index] or keys
        return self.query, keys.elements, values.elements, keys.scales, values.scales, self.sinks

    @property
    def _numbers(self) -> tuple[Tensor, Tensor, Tensor]:
        inputs = self.step.inputs
        return inputs.query_starts, inputs.context_lens, self._table

    @property
    def _table(self) -> Tensor:
        group, _ = self.step.backend.store.layer_tensors[self.form.layer.index]
        return self.step.inputs.block_tables[group]

    @property
    def _strides(self) -> tuple[int | float, ...]:
        """The strides of the table and of the query, the scale and the cap."""
        layer = self.form.layer
        cap = layer.softcap or 0.0
        return (
            self._table.stride(0),
            *self.query.stride()[:2],
            (2 * layer.scale / cap if cap else layer.scale) * LOG2_E,
            cap * LOG2_E,
        )
