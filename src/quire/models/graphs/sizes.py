"""The batch sizes whose decode steps are captured, and what capturing them takes."""

FINE_UPTO, FINE_STEP, COARSE_STEP = 256, 8, 16
"""Distances between captured batch sizes; a step is padded to the next size."""
RECORD_BYTES = 16 << 20
"""The memory that a driver keeps for one graph: a generous guess, to be compared with the memory
receipt."""


def ladder(max_num_seqs: int) -> list[int]:
    """Return the batch sizes that are captured, rising."""
    fine = range(FINE_STEP, min(max_num_seqs, FINE_UPTO) + 1, FINE_STEP)
    coarse = range(FINE_UPTO + COARSE_STEP, max_num_seqs + 1, COARSE_STEP)
    sizes = {1, 2, 4, *fine, *coarse, max_num_seqs}
    return sorted(size for size in sizes if size <= max_num_seqs)


def record_bytes(max_num_seqs: int, token_bytes: int) -> int:
    """Return the bytes that capturing takes: graphs, activations of one step, and kept logits.

    `token_bytes` are a token's activations and logits.
    """
    return len(ladder(max_num_seqs)) * RECORD_BYTES + 2 * max_num_seqs * token_bytes
