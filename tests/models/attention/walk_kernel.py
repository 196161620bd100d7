"""A kernel that goes through a work list as `attend_tokens` does, and writes down what it meets."""

import triton
import triton.language as tl

from quire.models.attention.triton.list_kernel import part_at, share_of, slot_of


@triton.jit
def walk(counts, found, num_seqs, HEAD_TILES: tl.constexpr, MOST: tl.constexpr):
    """Write to `found` int32 [programs, MOST, 5] the sequence, the tile of heads, the tiles that
    are skipped and taken, and the slot, or -1 for a whole context, of each part."""
    at = found + tl.program_id(0) * (5 * MOST)
    work, end = share_of(counts, num_seqs, tl.program_id(0), HEAD_TILES)
    while work < end:
        seq, head_tile, skipped, taken, is_whole = part_at(counts, num_seqs, work, end, HEAD_TILES)
        slot = tl.where(is_whole, -1, slot_of(tl.program_id(0), skipped))
        tl.store(at, seq)
        tl.store(at + 1, head_tile)
        tl.store(at + 2, skipped)
        tl.store(at + 3, taken)
        tl.store(at + 4, slot)
        at += 5
        work += taken
