"""A kernel that copies blocks of many tensors at once, by tables of their addresses."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["source_ids", "target_ids", "num_tiles"])
def copy_tiles(
    sources,
    targets,
    counts,
    source_ids,
    target_ids,
    num_tiles,
    COUNT: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    """Copy blocks `source_ids` to `target_ids`, int64, each in `num_tiles` tiles.

    Tile t has `counts[t]` numbers, int64, at most COUNT. In block 0 it begins at address
    `sources[t, 0]`, and `sources[t, 1]` bytes further in the next one; `targets` likewise. ELEMENT
    is an integer type that tells the bytes of a number. Addresses and distances are multiples of
    ALIGNMENT bytes, and so are tiles. The grid is tiles times ids.
    """
    program = tl.program_id(0)
    tile = program % num_tiles
    copy = program // num_tiles
    source_id = tl.load(source_ids + copy)
    target_id = tl.load(target_ids + copy)
    source = tl.load(sources + 2 * tile) + source_id * tl.load(sources + 2 * tile + 1)
    target = tl.load(targets + 2 * tile) + target_id * tl.load(targets + 2 * tile + 1)
    size: tl.constexpr = ELEMENT.primitive_bitwidth // 8
    count = tl.multiple_of(tl.load(counts + tile), ALIGNMENT // size)
    number = tl.arange(0, COUNT)
    read = tl.multiple_of(source.to(tl.pointer_type(ELEMENT)), ALIGNMENT)
    written = tl.multiple_of(target.to(tl.pointer_type(ELEMENT)), ALIGNMENT)
    tl.store(written + number, tl.load(read + number, number < count), number < count)
