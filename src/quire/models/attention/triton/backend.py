"""Attention by Triton's kernels, on GPUs from Ampere on: K and V are written and attended to over
block tables in place. Contexts of chunks of one token are cut among programs where there are few.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.attention.backend import check_sinks, dense_rows
from quire.models.attention.triton.attend_kernel import attend, combine
from quire.models.attention.triton.fresh import attend_fresh, is_fresh, takes
from quire.models.attention.triton.inputs import StepInputs, step_inputs
from quire.models.attention.triton.launch import Form
from quire.models.attention.triton.tiles import Device, num_splits
from quire.models.attention.triton.write_kernel import write
from quire.models.batch import Batch
from quire.models.config import LayerFacts
from quire.models.kv.kv_store import KVStore

LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class TritonAttention:
    """The attention backend of Triton's kernels, for stores and devices that `why_not` accepts.

    uses_flash: plain layers of steps without earlier context are PyTorch's flash attention, where
        `why_not_fresh` says nothing.
    """

    store: KVStore
    device: Device
    uses_flash: bool = False

    def begin(self, batch: Batch) -> "TritonStep":
        return TritonStep(self, step_inputs(batch), self.uses_flash and is_fresh(batch))

    def over(self, inputs: StepInputs) -> "TritonStep":
        return TritonStep(self, inputs)


@dataclass(frozen=True, slots=True)
class TritonStep:
    """One step of `TritonAttention`."""

    backend: TritonAttention
    inputs: StepInputs
    uses_flash: bool = False

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
        constants = form.attend_constants(tile, is_single=False, is_split=False)
        num_tiles = len(self.query) // form.tokens(tile) + len(inputs.context_lens)
        grid = (num_tiles, form.num_head_tiles(tile), 1)
        self._launch(grid, (self.out, None), constants, (tile.num_warps, tile.num_stages))

    def attend_singles(self) -> None:
        inputs, form = self.step.inputs, self.form
        tile = form.tile(1)
        num_seqs, num_head_tiles = len(inputs.context_lens), form.num_head_tiles(tile)
        splits = num_splits(num_seqs * num_head_tiles, self._max_visible, form.device)
        constants = form.attend_constants(tile, is_single=True, is_split=splits > 1)
        how = tile.num_warps, tile.num_stages
        grid = (num_seqs, num_head_tiles, splits)
        if splits == 1:
            self._launch(grid, (self.out, None), constants, how)
            return
        shape = (num_seqs, form.num_heads, splits)
        sums = self.out.new_empty(*shape, form.layer.v_head_size, dtype=torch.float32)
        log_sums = self.out.new_empty(shape, dtype=torch.float32)
        self._launch(grid, (sums, log_sums), constants, how)
        combine[(num_seqs, form.num_heads)](
            sums,
            log_sums,
            self.sinks,
            self.out,
            inputs.query_starts,
            splits,
            **form.combine_constants(),
        )

    @property
    def _max_visible(self) -> int:
        longest = self.step.inputs.bounds.max_context
        return min(longest, self.form.layer.pattern.size or longest)

    def _launch(
        self,
        grid: tuple[int, int, int],
        outs: tuple[Tensor, Tensor | None],
        constants: dict[str, object],
        how: tuple[int, int],
    ) -> None:
        layer, inputs, store = self.form.layer, self.step.inputs, self.step.backend.store
        group, index = store.layer_tensors[layer.index]
        keys = store.keys[index]
        values = store.values[index] or keys
        table = inputs.block_tables[group]
        cap = layer.softcap or 0.0
        attend[grid](
            self.query,
            keys.elements,
            values.elements,
            keys.scales,
            values.scales,
            self.sinks,
            *outs,
            inputs.query_starts,
            inputs.context_lens,
            table,
            len(inputs.context_lens),
            table.stride(0),
            *self.query.stride()[:2],
            layer.scale / cap if cap else layer.scale * LOG2_E,
            cap * LOG2_E,
            **constants,
            num_warps=how[0],
            num_stages=how[1],
        )
