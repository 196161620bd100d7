"""The work list of a step's chunks of one token, which is made on the device and never seen by the
host. All tiles of keys, of one sequence after the other and within it of one tile of heads after
the other, are cut into equal shares, one for each program: where a context goes from one share into
the next its parts are combined (arXiv 2405.10480).

The list is int32 [sequences + 2]: the tiles of all sequences before each, for one tile of heads;
those of all; and the tiles of a share.
"""

import triton
import triton.language as tl

from quire.models.attention.triton.shared_kernel import first_visible


@triton.jit(do_not_specialize=["num_seqs", "query_starts"])
def count_tiles(
    query_starts,
    context_lens,
    counts,
    num_seqs,
    num_programs,
    min_tiles,
    WINDOW_SIZE: tl.constexpr,
    CHUNK_SIZE: tl.constexpr,
    HEAD_TILES: tl.constexpr,
    KEYS: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Write the list to `counts`: shares of no fewer than `min_tiles`, of which `num_programs` are
    enough, and MAX_PARTS for each context and one more. The grid is one program."""
    done = 0
    longest = 0
    for low in range(0, num_seqs, AT_ONCE):
        seq = low + tl.arange(0, AT_ONCE)
        is_live = seq < num_seqs
        num_new = tl.load(query_starts + seq + 1, is_live, 0) - tl.load(
            query_starts + seq, is_live, 0
        )
        position = tl.load(context_lens + seq, is_live, 1) - 1
        tiles = tl.cdiv(position + 1 - first_visible(position, WINDOW_SIZE, CHUNK_SIZE), KEYS)
        tiles = tl.where(num_new == 1, tiles, 0)
        tl.store(counts + seq, done + tl.cumsum(tiles, 0) - tiles, is_live)
        done += tl.sum(tiles, 0)
        longest = tl.maximum(longest, tl.max(tiles, 0))
    share = tl.maximum(tl.cdiv(done * HEAD_TILES, num_programs), min_tiles)
    tl.store(counts + num_seqs, done)
    tl.store(counts + num_seqs + 1, tl.maximum(share, tl.cdiv(longest, MAX_PARTS)))


@triton.jit
def share_of(counts, num_seqs, program, HEAD_TILES: tl.constexpr):
    """Return the first and last tile of a program's share."""
    share = tl.load(counts + num_seqs + 1)
    begin = program * share
    return begin, tl.minimum(begin + share, tl.load(counts + num_seqs) * HEAD_TILES)


@triton.jit
def part_at(counts, num_seqs, begin, end, HEAD_TILES: tl.constexpr):
    """Return what a share from `begin` to `end` has first: the sequence, the tile of heads, how
    many tiles of keys are before it, how many it has, and whether it is all of them."""
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        is_later = tl.load(counts + middle) <= begin // HEAD_TILES
        low = tl.where(is_later, middle, low)
        high = tl.where(is_later, high, middle)
    before = tl.load(counts + low)
    tiles = tl.load(counts + low + 1) - before
    place = begin - before * HEAD_TILES
    skipped = place % tiles
    taken = tl.minimum(tiles - skipped, end - begin)
    return low, place // tiles, skipped, taken, taken == tiles


@triton.jit
def slot_of(program, skipped):
    """Return the slot of a part that is not all of its context: of the two of its program the
    first if it goes on with one, the second if it begins one."""
    return 2 * program + (skipped == 0).to(tl.int32)
