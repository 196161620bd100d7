"""The tensors of a step as one, so that one message or one broadcast carries them to the other
ranks."""

from collections.abc import Iterator

import torch
from torch import Tensor

from quire.engine.host_to_device import pack, packed_bytes, unpack
from quire.engine.ranks.messages import Forward
from quire.models.batch import Batch
from quire.models.recurrent.pieces import Pieces

META = torch.device("meta")


def packed_tensors(batch: Batch) -> Tensor:
    """Return the tensors of a batch in one, uint8 on their device. Raises ValueError for one with
    token types: it is of an encoder, which is not divided."""
    if batch.token_types is not None:
        raise ValueError("a step with token types is not for several ranks")
    states = [] if batch.states_indices is None else [batch.states_indices]
    tensors = (batch.input_ids, batch.positions, batch.logits_indices, *states)
    tensors += (*batch.slots, *batch.block_tables, *_of_pieces(batch.pieces))
    return pack(tensors, device=batch.input_ids.device)


def header(batch: Batch, tensors: bytes | None) -> Forward:
    """Return the message of a step, with its packed `tensors` or without."""
    states, pieces = batch.states_indices, batch.pieces
    return Forward(
        query_starts=batch.query_starts,
        context_lens=batch.context_lens,
        num_tables=len(batch.block_tables),
        table_width=batch.block_tables[0].shape[1] if batch.block_tables else 0,
        num_logits=len(batch.logits_indices),
        num_states=None if states is None else len(states),
        num_pieces=None if pieces is None else len(pieces.reads),
        tensors=tensors,
    )


def num_bytes(step: Forward) -> int:
    """Return the bytes of a step's packed tensors."""
    return packed_bytes(list(_like(step)))


def unpacked_batch(step: Forward, packed: Tensor) -> Batch:
    """Return the batch that was packed, on the device of `packed`."""
    input_ids, positions, logits_indices, *rest = unpack(packed, list(_like(step)))
    states = None if step.num_states is None else rest.pop(0)
    tables_end = 2 * step.num_tables
    pieces = None if step.num_pieces is None else Pieces(*rest[tables_end:])
    return Batch(
        input_ids=input_ids,
        positions=positions,
        slots=tuple(rest[: step.num_tables]),
        block_tables=tuple(rest[step.num_tables : tables_end]),
        query_starts=step.query_starts,
        context_lens=step.context_lens,
        logits_indices=logits_indices,
        states_indices=states,
        pieces=pieces,
    )


def _of_pieces(pieces: Pieces | None) -> tuple[Tensor, ...]:
    """Return the tensors of pieces, in the order of their fields."""
    if pieces is None:
        return ()
    return pieces.starts, pieces.reads, pieces.writes, pieces.sequences


def _like(step: Forward) -> Iterator[Tensor]:
    """Yield tensors without memory of the shapes and dtypes of a step's, in their order."""
    num_tokens, num_chunks = step.query_starts[-1], len(step.context_lens)
    for size in (num_tokens, num_tokens, step.num_logits):
        yield torch.empty(size, dtype=torch.int64, device=META)
    if step.num_states is not None:
        yield torch.empty(step.num_states, dtype=torch.int64, device=META)
    for _ in range(step.num_tables):
        yield torch.empty(num_tokens, dtype=torch.int64, device=META)
    for _ in range(step.num_tables):
        yield torch.empty((num_chunks, step.table_width), dtype=torch.int32, device=META)
    if step.num_pieces is not None:
        of_pieces = (step.num_pieces + 1, step.num_pieces, step.num_pieces, num_chunks + 1)
        for size in of_pieces:
            yield torch.empty(size, dtype=torch.int32, device=META)
