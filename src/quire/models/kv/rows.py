"""Blocks as rows: one block of all of a store's tensors, one part after the other, in one run of
bytes. So a block goes between device and host in one piece, whatever the number of layers.

    row:   keys 0 | scales of keys 0 | keys 1 | ... | values 0 | ...      each part aligned
"""

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

from quire.cache.layout import aligned


def block_bytes(tensor: Tensor) -> int:
    """Return the bytes of one block of a store's tensor [num_blocks, ...]."""
    return tensor[0].nbytes


def row_offsets(tensors: Sequence[Tensor]) -> list[int]:
    """Return where the part of each tensor begins in a row, in bytes, and last the bytes of a
    row."""
    return list(accumulate((aligned(block_bytes(tensor)) for tensor in tensors), initial=0))


def row_views(rows: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of uint8 `rows` [N, row bytes] as tensors like those of a store, of N
    blocks."""
    return [
        rows[:, offset : offset + block_bytes(tensor)]
        .view(tensor.dtype)
        .view(len(rows), *tensor.shape[1:])
        for tensor, offset in zip(tensors, row_offsets(tensors), strict=False)
    ]
