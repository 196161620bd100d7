"""The tensors of one step: the tokens of all chunks packed into one ragged row, and the slots and
block tables that say where their keys and values lie.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyTime


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of one step of T tokens in S chunks, all of them on the model's device.

    input_ids, positions: int64 [T], the chunks of all requests one after another.
    slots: for each layer group int64 [T], where each token's K and V are written.
    block_tables: for each layer group int32 [S, max_blocks], padded with the null block 0; entries
        for what no query of the step can see mean nothing.
    query_starts: S + 1 offsets into the T tokens.
    context_lens: S lengths in tokens, this step's own included.
    logits_indices: int64 [R], rising: the tokens whose logits are needed.
    greedy_only: all R rows are sampled greedily, so that only the largest logit of each, and what
        equals it, must be right; any other may be -inf.
    states_indices: int64, rising, none of them among `logits_indices`: the tokens whose states are
        needed, as the model's head would read them. None for none.
    token_types: int64 [T], 1 for the tokens of second texts, else 0; None where there is none.
    """

    input_ids: Tensor
    positions: Tensor
    slots: tuple[Tensor, ...]
    block_tables: tuple[Tensor, ...]
    query_starts: tuple[int, ...]
    context_lens: tuple[int, ...]
    logits_indices: Tensor
    greedy_only: bool = False
    states_indices: Tensor | None = None
    token_types: Tensor | None = None


def split_batch(batch: Batch) -> tuple[Batch, Batch] | None:
    """Return two batches that compute the same one after the other, or None for a single token.

    The first has the tokens before the middle and the second the rest, each with its own rows of
    logits. Waits for the device.
    """
    starts, num_tokens = batch.query_starts, batch.query_starts[-1]
    if num_tokens < 2:
        return None
    middle = num_tokens // 2
    logits_indices = _split_indices(batch.logits_indices, middle)
    states_indices = _split_indices(batch.states_indices, middle)
    first_end = bisect_left(starts, middle)
    second = bisect_right(starts, middle) - 1
    first_lens = list(batch.context_lens[:first_end])
    first_lens[-1] -= starts[first_end] - middle  # left out of the chunk that is cut, if one is
    return (
        replace(
            batch,
            input_ids=batch.input_ids[:middle],
            positions=batch.positions[:middle],
            slots=tuple(slots[:middle] for slots in batch.slots),
            block_tables=tuple(table[:first_end] for table in batch.block_tables),
            query_starts=(*starts[:first_end], middle),
            context_lens=tuple(first_lens),
            logits_indices=logits_indices[0],
            states_indices=states_indices[0],
        ),
        replace(
            batch,
            input_ids=batch.input_ids[middle:],
            positions=batch.positions[middle:],
            slots=tuple(slots[middle:] for slots in batch.slots),
            block_tables=tuple(table[second:] for table in batch.block_tables),
            query_starts=(0, *(start - middle for start in starts[second + 1 :])),
            context_lens=batch.context_lens[second:],
            logits_indices=logits_indices[1],
            states_indices=states_indices[1],
        ),
    )


Indices = TypeVar("Indices", Tensor, Tensor | None)


def _split_indices(indices: Indices, middle: int) -> tuple[Indices, Indices]:
    """Return the rising indices below `middle`, and the others as they count from there."""
    if indices is None:
        return None, None
    num_rows = int((indices < middle).sum())
    return indices[:num_rows], indices[num_rows:] - middle


class StepRows(NamedTuple):
    """The rows of a step that were asked for.

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
        """Start the block copies of a step, before it, in order; the step reads what they wrote.

        `new_blocks` are those that its requests get anew; copies out of other blocks may go on
        beside the step.
        """
        ...

    def take_copy_time(self) -> CopyTime:
        """Return the time of the copies that are done and were not told of yet; never waits."""
        ...

    def forward(self, batch: Batch) -> Tensor:
        """Write the step's K and V, attend, and return the logits of `logits_indices`.

        They are [R, vocab_size], of a float dtype. With `batch.greedy_only` the largest of each row
        are right and the others may be -inf.
        """
        ...

    def forward_with_states(self, batch: Batch) -> StepRows:
        """Do as `forward` does for a batch with `states_indices`, and return these states too.

        They are what the model's head reads, after the last norm, of a float dtype. Raises
        RuntimeError where the model does not show them.
        """
        ...
