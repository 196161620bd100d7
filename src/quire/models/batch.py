"""The tensors of one step: the tokens of all chunks packed into one ragged row, and the slots and
block tables that say where their keys and values lie.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.models.kv.pages_ahead import PagesAhead
from quire.models.recurrent.pieces import Pieces


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of one step of T tokens in S chunks, all of them on the model's device.

    input_ids, positions: int64 [T], the chunks of all requests one after another.
    slots: for each block table of the layout (`Layout.tables`) int64 [T], where each token's K and
        V are written.
    block_tables: for each of them int32 [S, max_blocks], padded with a part of the null block 0;
        entries for what no query of the step can see mean nothing.
    query_starts: S + 1 offsets into the T tokens.
    context_lens: S lengths in tokens, this step's own included.
    logits_indices: int64 [R], rising: the tokens whose logits are needed.
    states_indices: int64, rising, none of them among `logits_indices`: the tokens whose states are
        needed, as the model's head would read them. None for none.
    token_types: int64 [T], 1 for the tokens of second texts, else 0; None where there is none.
    pieces: the states of recurrent layers that the step reads and writes; None without such layers.
    """

    input_ids: Tensor
    positions: Tensor
    slots: tuple[Tensor, ...]
    block_tables: tuple[Tensor, ...]
    query_starts: tuple[int, ...]
    context_lens: tuple[int, ...]
    logits_indices: Tensor
    states_indices: Tensor | None = None
    token_types: Tensor | None = None
    pieces: Pieces | None = None


class BatchPart(NamedTuple):
    """A part of a batch, computed apart; its first chunk is the `first_chunk` of the whole, or the
    rest of that."""

    batch: Batch
    first_chunk: int = 0

    @property
    def chunks(self) -> range:
        """The chunks of the whole that the part has tokens of."""
        return range(self.first_chunk, self.first_chunk + len(self.batch.context_lens))


def cut_in_half(part: BatchPart) -> tuple[BatchPart, BatchPart] | None:
    """Return the tokens before the middle and the rest, a chunk being cut if need be, or None for a
    single token. Computed one after the other they are the same as together. Waits for the
    device."""
    num_tokens = part.batch.query_starts[-1]
    return _cut(part, num_tokens // 2) if num_tokens > 1 else None


def cut_between_chunks(part: BatchPart) -> tuple[BatchPart, BatchPart] | None:
    """Return the first half of the chunks and the rest, or None for a single chunk. Waits for the
    device."""
    starts = part.batch.query_starts
    return _cut(part, starts[(len(starts) - 1) // 2]) if len(starts) > 2 else None


def _cut(part: BatchPart, middle: int) -> tuple[BatchPart, BatchPart]:
    """Return the tokens before the `middle` and the rest, each with its own rows."""
    batch, starts = part.batch, part.batch.query_starts
    first_end = bisect_left(starts, middle)
    second = bisect_right(starts, middle) - 1
    first_lens = list(batch.context_lens[:first_end])
    first_lens[-1] -= starts[first_end] - middle  # left out of the chunk that is cut, if one is
    first = replace(
        _tokens(batch, slice(middle)),
        block_tables=tuple(table[:first_end] for table in batch.block_tables),
        query_starts=(*starts[:first_end], middle),
        context_lens=tuple(first_lens),
    )
    rest = replace(
        _tokens(batch, slice(middle, starts[-1])),
        block_tables=tuple(table[second:] for table in batch.block_tables),
        query_starts=(0, *(start - middle for start in starts[second + 1 :])),
        context_lens=batch.context_lens[second:],
    )
    return BatchPart(first, part.first_chunk), BatchPart(rest, part.first_chunk + second)


def _tokens(batch: Batch, tokens: slice) -> Batch:
    """Return the batch restricted to some of its tokens."""
    first, end, _ = tokens.indices(batch.query_starts[-1])
    types = batch.token_types
    return replace(
        batch,
        input_ids=batch.input_ids[tokens],
        positions=batch.positions[tokens],
        slots=tuple(slots[tokens] for slots in batch.slots),
        logits_indices=_between(batch.logits_indices, first, end),
        states_indices=_between(batch.states_indices, first, end),
        token_types=None if types is None else types[tokens],
    )


Indices = TypeVar("Indices", Tensor, Tensor | None)


def _between(indices: Indices, first: int, end: int) -> Indices:
    """Return the rising indices from `first` to before `end`, as they count from `first`."""
    if indices is None:
        return None
    return indices[(indices >= first) & (indices < end)] - first


class StepRows(NamedTuple):
    """The requested rows of a step.

    logits: [R, vocab_size], of the tokens of `logits_indices`.
    states: [S, hidden_size], of the tokens of `states_indices`; None where these are None.
    """

    logits: Tensor
    states: Tensor | None = None


class Model(Protocol):
    """A model that a runner drives: the Hugging Face one, or the toy one of the invariant tests."""

    @property
    def vocab_size(self) -> int: ...

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        """Start the copies of a step, of blocks and of states, before it and in order; the step
        reads their results.

        `new_blocks` are blocks newly taken by its requests; copies out of other blocks may overlap
        the step.
        """
        ...

    def take_copy_time(self) -> CopyTime:
        """Return the time of the copies that are done and were not told of yet; never waits."""
        ...

    def forward(self, batch: Batch) -> Tensor:
        """Write the step's K and V, attend, and return the logits of `logits_indices`.

        They are [R, vocab_size], of a float dtype, and stay as they are until the next call.
        """
        ...

    def forward_with_states(self, batch: Batch) -> StepRows:
        """Do as `forward` does for a batch with `states_indices`, and return these states too.

        They are the inputs of the model's head, after the last norm, of a float dtype. Raises
        RuntimeError where the model does not show them.
        """
        ...


@runtime_checkable
class MapsPages(Protocol):
    """A model whose KV blocks may lie in memory that the system maps when it is first written."""

    def pages_ahead(self) -> PagesAhead | None:
        """Return what maps them before, None where nothing need be."""
        ...
