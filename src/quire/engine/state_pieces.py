"""The pieces of a step's rows, for models with recurrent layers."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from quire.engine.host_to_device import to_device
from quire.models.recurrent.pieces import Pieces
from quire.scheduler.step import SeqChunk


def state_pieces(
    chunks: Sequence[SeqChunk], query_starts: Sequence[int], device: torch.device
) -> Pieces | None:
    """Return the pieces that the chunks' states cut a step into, None for a model without recurrent
    layers. `query_starts` are the offsets of the chunks into the step's tokens."""
    if not chunks or chunks[0].states is None:
        return None
    starts, reads, writes, sequences = [0], [], [], [0]
    for chunk, (first, _) in zip(chunks, pairwise(query_starts), strict=True):
        assert chunk.states is not None
        read = chunk.states.read
        for end, state_id in chunk.states.writes:
            starts.append(first + end - chunk.start)
            reads.append(read)
            writes.append(state_id)
            read = state_id
        sequences.append(len(reads))
    numbers = (starts, reads, writes, sequences)
    arrays = [torch.from_numpy(np.array(each, dtype=np.int32)) for each in numbers]
    return Pieces(*to_device(arrays, device))
