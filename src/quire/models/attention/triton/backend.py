"""Attention by Triton's kernels, on GPUs from Ampere on: K and V are written and attended to over
block tables in place. Contexts of chunks of one token are shared among as many programs as a device
runs at once, by a list that is made on the device.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from quire.models.attention.backend import check_sinks, dense_rows
from quire.models.attention.triton.chunk_kernel import attend_chunks
from quire.models.attention.triton.combine_kernel import combine
from quire.models.attention.triton.fresh import attend_fresh, is_fresh, takes
from quire.models.attention.triton.inputs import StepInputs, step_inputs
from quire.models.attention.triton.launch import AttentionLayer
from quire.models.attention.triton.layer_launch import LayerLaunch, Options, SharedLaunch
from quire.models.attention.triton.list_kernel import count_tiles
from quire.models.attention.triton.tiles import DeviceProperties
from quire.models.attention.triton.token_kernel import attend_tokens
from quire.models.attention.triton.write_kernel import write
from quire.models.batch import Batch
from quire.models.config import LayerFacts
from quire.models.kv.kv_store import KVStore

MAX_ROWS = 2**31
"""Kernels count the vectors of a store's tensor, blocks x block size x K/V heads, in int32."""


@dataclass(frozen=True, slots=True)
class TritonAttention:
    """The attention backend of Triton's kernels, for stores and devices that `why_not` accepts.

    uses_flash: plain layers of steps without earlier context are PyTorch's flash attention, where
        `why_not_fresh` says nothing.
    launches: what launches have in common, by a layer's index and its number of query heads.

    Raises ValueError where a tensor of the store has over MAX_ROWS vectors.
    """

    store: KVStore
    device: DeviceProperties
    uses_flash: bool = False
    launches: dict[tuple[int, int], LayerLaunch] = field(default_factory=dict)

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

    def launch_of(self, layer: LayerFacts, num_heads: int) -> LayerLaunch:
        """Return the common arguments of a layer's launches, made at its first attention."""
        key = layer.index, num_heads
        launch = self.launches.get(key)
        if launch is None or launch.form.layer is not layer:
            store = self.store
            form = AttentionLayer(layer, num_heads, store.codec, store.block_size, self.device)
            launch = self.launches[key] = LayerLaunch(form, store)
        return launch


ALIGNMENT = 16
"""Triton compiles a kernel for numbers that are multiples of it, and another for those that are
not."""


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
        query, key, value = (_rows(tensor) for tensor in (query, key, value))
        num_tokens, num_heads, _ = query.shape
        launch = self.backend.launch_of(layer, num_heads)
        self._write(launch, key, value)
        if self.uses_flash and takes(layer, self.backend.store.codec):
            return attend_fresh(layer, self.inputs, query, key, value)
        out = query.new_empty(num_tokens, num_heads, layer.v_head_size)
        call = _Call(self, launch, query, sinks, out)
        if self.inputs.bounds.has_longer:
            call.attend_longer()
        if self.inputs.bounds.has_singles:
            call.attend_singles()
        return out

    def store(self, layer: LayerFacts, num_heads: int, key: Tensor, value: Tensor) -> None:
        """Write the keys and values of the step's tokens to their slots, as `attend` does first."""
        launch = self.backend.launch_of(layer, num_heads)
        self._write(launch, _rows(key), _rows(value))

    def _write(self, launch: LayerLaunch, key: Tensor, value: Tensor) -> None:
        if launch.form.layer.shares_kv:
            return
        num_tokens, num_kv_heads, _ = key.shape
        write[(-(-num_tokens * num_kv_heads // launch.write_rows),)](
            key,
            value,
            *launch.written,
            self.inputs.slots[launch.table],
            num_tokens,
            *_strides(key),
            *_strides(value),
            **launch.write_options,
        )


class _Call:
    """One layer's attention within a step. What is allocated here is the step's own: a workspace
    that grew would leave launches captured earlier without theirs."""

    def __init__(
        self,
        step: TritonStep,
        launch: LayerLaunch,
        query: Tensor,
        sinks: Tensor | None,
        out: Tensor,
    ) -> None:
        self._lists = step.lists
        self._inputs = inputs = step.inputs
        self._launch = launch
        self._num_tokens = query.shape[0]
        self._num_seqs = inputs.context_lens.shape[0]
        self._sinks = sinks
        self._out = out
        table = inputs.block_tables[launch.table]
        self._sources = query, *launch.sources, sinks, out
        self._tables = inputs.query_starts, inputs.context_lens, table, self._num_seqs
        self._numbers = table.stride(0), *_strides(query), *launch.numbers

    def attend_longer(self) -> None:
        launch = self._launch.chunks(self._inputs.bounds.longest_chunk)
        grid = (self._num_tokens // launch.tokens + self._num_seqs, launch.num_head_tiles)
        attend_chunks[grid](*self._sources, *self._tables, *self._numbers, **launch.options)

    def attend_singles(self) -> None:
        layer_launch = self._launch
        if not layer_launch.form.is_shared(self._inputs.bounds.max_context):
            launch = layer_launch.tokens
            grid = (self._num_seqs, launch.num_head_tiles)
            self._attend_tokens(grid, (None, None, None), launch.options)
            return
        shared, form, out = layer_launch.shared, layer_launch.form, self._out
        counts = self._counts(shared)
        shape = (2 * shared.num_programs, shared.heads)
        sums = out.new_empty(*shape, form.layer.v_head_size, dtype=torch.float32)
        log_sums = out.new_empty(shape, dtype=torch.float32)
        self._attend_tokens((shared.num_programs,), (sums, log_sums, counts), shared.tokens)
        combine[(self._num_seqs, form.num_heads)](
            sums,
            log_sums,
            self._sinks,
            out,
            counts,
            self._inputs.query_starts,
            self._num_seqs,
            **shared.combine,
        )

    def _counts(self, shared: SharedLaunch) -> Tensor:
        """Return the work list, which layers share that see alike."""
        inputs, index = self._inputs, self._launch.form.layer.index
        maker, counts = self._lists.get(shared.key, (index, None))
        if counts is not None and maker != index:
            return counts
        counts = inputs.context_lens.new_empty(self._num_seqs + 2)
        count_tiles[(1,)](
            inputs.query_starts,
            inputs.context_lens,
            counts,
            self._num_seqs,
            shared.num_programs,
            shared.min_tiles,
            **shared.counts,
        )
        self._lists[shared.key] = index, counts
        return counts

    def _attend_tokens(
        self, grid: tuple[int, ...], parts: tuple[Tensor | None, ...], options: Options
    ) -> None:
        attend_tokens[grid](*self._sources, *parts, *self._tables, *self._numbers, **options)


def _rows(tensor: Tensor) -> Tensor:
    """Return rows [T, heads, width] as kernels read them, without a copy where their strides are
    multiples of ALIGNMENT: others change with T, and a kernel is compiled for each kind."""
    rows = dense_rows(tensor)
    is_aligned = all(stride % ALIGNMENT == 0 for stride in rows.stride()[:2])
    return rows if is_aligned else rows.contiguous()


def _strides(rows: Tensor) -> tuple[int, int]:
    """Return the elements from one token to the next and from one head to the next, [T, heads,
    width]. Of a dimension of one torch says any number: there it is that of dense rows."""
    num_tokens, num_heads, width = rows.shape
    of_token, of_head, _ = rows.stride()
    return (
        of_token if num_tokens > 1 else num_heads * width,
        of_head if num_heads > 1 else width,
    )
