"""The sizes of captured steps, and their memory."""

from typing import NamedTuple

FINE_UPTO, FINE_STEP, COARSE_STEP = 256, 8, 16
"""Distances between captured batch sizes; a step is padded to the next size."""
RECORD_BYTES = 16 << 20
"""The memory that a driver keeps for one graph: a generous guess, to be compared with the memory
receipt."""
PIECE_STEPS = ((256, 32), (512, 64), (1024, 128), (2048, 256))
"""Distances between captured steps of up to so many tokens, in tokens: at most a fifth of a step of
over 128 tokens is padding."""
MAX_PIECE_ROWS = 256
PIECE_BYTES = 1 << 19
"""As much for one graph of a step in pieces, of which each has a part of the launches."""


class GraphKinds(NamedTuple):
    """The kinds of steps that are captured: `decode`, those of one token a request, whole;
    `pieces`, any, with attention between them."""

    decode: bool = False
    pieces: bool = False


def ladder(max_num_seqs: int) -> list[int]:
    """Return the batch sizes that are captured, rising."""
    fine = range(FINE_STEP, min(max_num_seqs, FINE_UPTO) + 1, FINE_STEP)
    coarse = range(FINE_UPTO + COARSE_STEP, max_num_seqs + 1, COARSE_STEP)
    sizes = {1, 2, 4, *fine, *coarse, max_num_seqs}
    return sorted(size for size in sizes if size <= max_num_seqs)


def piece_ladder(max_num_tokens: int) -> list[int]:
    """Return the tokens of the steps that are captured in pieces, rising: steps of up to
    `max_num_tokens`, or 2,048, are padded to the next. A step of one token is not captured."""
    sizes = [max_num_tokens]
    first = 0
    for upto, distance in PIECE_STEPS:
        sizes += range(first + distance, upto + 1, distance)
        first = upto
    largest = min(max_num_tokens, first)
    return sorted({size for size in sizes if 1 < size <= largest})


def num_piece_rows(size: int, max_num_seqs: int) -> int:
    """Return how many tokens' logits a step of `size` tokens in pieces computes: fewer than it has,
    since a model that is to compute as many may take them in its own order."""
    return min(max_num_seqs, MAX_PIECE_ROWS, size - 1)


def piece_bytes(max_num_tokens: int, num_cuts: int, token_bytes: int) -> int:
    """Return the bytes that capturing pieces takes: graphs, activations of the largest step, and as
    much again for the inputs and outputs of what is launched between pieces and kept logits, which
    are parts of them.

    `num_cuts` are the places where a step is cut. `token_bytes` are a token's activations and
    logits.
    """
    sizes = piece_ladder(max_num_tokens)
    graphs = len(sizes) * (num_cuts + 1) * PIECE_BYTES
    return graphs + 2 * max(sizes, default=0) * token_bytes


def record_bytes(max_num_seqs: int, token_bytes: int) -> int:
    """Return the bytes that capturing decode steps takes: graphs, activations of one step, and kept
    logits.

    `token_bytes` are a token's activations and logits.
    """
    return len(ladder(max_num_seqs)) * RECORD_BYTES + 2 * max_num_seqs * token_bytes
