"""The sizes of the kernels' tiles, and the number of programs that contexts are shared among:
functions of a layer and a device, so that nothing is tuned while requests wait.
"""

from typing import NamedTuple

from quire.models.config import LayerFacts
from quire.models.kv.kv_codec import Codec

MIN_ROWS = 16
"""The minimum tile size of a tensor core."""
MAX_HEAD_SIZE, MAX_V_HEAD_SIZE = 576, 512
"""The maximum tile size, so that tiles fit in registers."""
MAX_PARTS = 64
MIN_SPLIT_KEYS = 256
PROGRAMS_PER_SM, MAX_PROGRAMS_PER_SM = 2, 4
NUM_REGISTERS, MAX_REGISTERS = 65536, 255
"""The registers of a multiprocessor, and the maximum of a thread."""
WARP_SIZE = 32
LARGE_SHARED = (80, 90, 100)
"""The capabilities with over 160 KiB of shared memory for a multiprocessor, not 100."""
WRITE_ELEMENTS = 2048
"""Elements that one program writes, 16 bytes for each of its threads at a time."""


class TileShape(NamedTuple):
    """`rows`: tokens times query heads. `keys` are met at once; five stages have two tiles of them
    on their way to shared memory, three have one, since the block ids come a stage before."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


class DeviceProperties(NamedTuple):
    """`capability`: 80 for 8.0. `num_sms`: multiprocessors to keep busy. `tile`: of all layers, in
    place of what is chosen. A part of a context of fewer than `min_split_keys` costs more to bring
    back together than it saves."""

    capability: int
    num_sms: int
    is_interpreted: bool = False
    tile: TileShape | None = None
    min_split_keys: int = MIN_SPLIT_KEYS

    @property
    def reads_shared(self) -> bool:
        """Whether products read keys from shared memory, not from registers. 12.x, of desktops,
        is as 8.x there."""
        return 90 <= self.capability < 120

    @property
    def loads_ahead(self) -> bool:
        """Whether products that read shared memory run beside loads: with three stages 9.0 would
        wait for every tile before it multiplies (`make gpu-compile` tells the waits of loops)."""
        return 90 <= self.capability < 100


def choose_tile(
    layer: LayerFacts, codec: Codec, most_rows: int, device: DeviceProperties
) -> TileShape:
    """Return the tile for `most_rows`: tokens of the longest chunk times query heads of a group.

    Tiles are the largest that spill no registers and leave a GPU with 99 KiB of shared memory (8.6,
    8.9, 12.0) space for one program: `tools/triton_figures` prints the registers and shared memory
    of each. They have many rows, so that keys are read seldom, and few where there are no more, so
    that many programs share a multiprocessor and wait for memory in turn. Where a product reads its
    keys from shared memory, registers are left for more of them.
    """
    head_size = layer.head_size
    if device.tile is not None:
        return device.tile
    if codec.dtype.itemsize > 2:
        return _exact_tile(head_size, codec)
    if most_rows <= MIN_ROWS:
        if head_size > 256 and not codec.is_quantised:
            return TileShape(MIN_ROWS, 32, 8, 5 if device.loads_ahead else 3)
        return TileShape(MIN_ROWS, 16 if head_size > 256 else 32, 4, 5)
    if head_size > 256:
        if codec.is_quantised:
            return TileShape(32, 32, 8, 2)
        return TileShape(32, 32, 8, 5 if device.loads_ahead else 3)
    if head_size > 128:
        return _wide_tile(layer, codec, device)
    return _narrow_tile(layer, codec, device)


def _narrow_tile(layer: LayerFacts, codec: Codec, device: DeviceProperties) -> TileShape:
    """Return the tile of long chunks for keys of up to 128 elements.

    It has many keys, unless registers would spill, or unless with few of them a multiprocessor has
    two programs, of which one multiplies while the other weighs: those of up to 64 elements in 16
    bits. On 9.0 it has so few that a tile of K and one of V are under way while two are met.
    """
    is_small = layer.head_size <= 64
    if device.loads_ahead:
        return TileShape(128, 64, 8, 5)
    if device.reads_shared:
        has_room = device.capability < 100 and layer.window_size is None and layer.softcap is None
        has_many = is_small if codec.is_quantised else has_room and not is_small
        return TileShape(128, 128 if has_many else 64, 8, 3)
    if codec.is_quantised:
        return TileShape(128 if is_small else 64, 32, 8, 5)
    return TileShape(128, 32, 8, 3 if is_small else 5)


def _wide_tile(layer: LayerFacts, codec: Codec, device: DeviceProperties) -> TileShape:
    """Return the tile of long chunks for keys of 129 to 256 elements.

    A smaller one may spill where a larger does not: the assembler then tries to leave registers for
    a second program.
    """
    if device.loads_ahead:
        return TileShape(64 if codec.is_quantised else 128, 32, 8, 5)
    if device.reads_shared:
        if codec.is_quantised and layer.head_size > 192:
            return TileShape(64, 32, 8, 3)
        has_rest = split_size(layer.head_size)[1] > 0 and layer.v_head_size > 128
        return TileShape(64 if has_rest else 128, 64, 8, 3)
    if codec.is_quantised:
        return TileShape(32, 64 if layer.head_size > 192 else 32, 8, 3)
    return TileShape(64 if layer.v_head_size > 128 else 128, 32, 8, 3)


def _exact_tile(head_size: int, codec: Codec) -> TileShape:
    """Return a tile without tensor cores, which are not exact: small, or registers spill."""
    if head_size <= 64 and not codec.is_quantised:
        return TileShape(MIN_ROWS, 16, 4, 3)
    if head_size <= 128:
        return TileShape(MIN_ROWS, 16, 8, 3)
    return TileShape(MIN_ROWS, 16, 4, 2) if head_size <= 256 else TileShape(MIN_ROWS, 16, 8, 3)


def columns(size: int) -> int:
    """Return the columns of a tile for `size`: a power of two, at least a tensor core's."""
    return max(16, 1 << (size - 1).bit_length())


def split_size(size: int) -> tuple[int, int]:
    """Return `columns` of two tiles that hold `size` together with less waste than one, as 128 and
    64 for 192; the second is 0 where one tile suffices."""
    main = 1 << (size.bit_length() - 1)
    rest = columns(size - main) if size > main else 0
    return (columns(size), 0) if main < 16 or rest in (0, main) else (main, rest)


def num_programs(layer: LayerFacts, codec: Codec, tile: TileShape, device: DeviceProperties) -> int:
    """Return how many programs share the contexts of single tokens, all with the same work: those
    that a device runs at once, by the registers and the shared memory that they take."""
    return device.num_sms * _programs_per_sm(layer, codec, tile, device)


def _programs_per_sm(
    layer: LayerFacts, codec: Codec, tile: TileShape, device: DeviceProperties
) -> int:
    if tile.rows > MIN_ROWS:
        return 1
    is_wide = layer.head_size > 192 and not codec.is_quantised
    if is_wide and device.capability not in LARGE_SHARED:
        return 1
    if codec.is_quantised and codec.dtype.itemsize > 2 and 64 < layer.head_size <= 128:
        return 1
    is_narrow = layer.head_size <= 128 and codec.dtype.itemsize == 2
    has_room = codec.is_quantised or device.capability in LARGE_SHARED
    return MAX_PROGRAMS_PER_SM if is_narrow and has_room else PROGRAMS_PER_SM


def max_registers(
    layer: LayerFacts, codec: Codec, tile: TileShape, device: DeviceProperties
) -> int | None:
    """Return how many registers a thread of single tokens may have, so that `num_programs` run at
    once; None leaves it to the assembler. For numbers to widen to 16 bits that would spill, to have
    more programs than there are."""
    if not codec.is_quantised or codec.dtype.itemsize > 2 or device.is_interpreted:
        return None
    programs = _programs_per_sm(layer, codec, tile, device)
    return min(NUM_REGISTERS // (programs * tile.num_warps * WARP_SIZE), MAX_REGISTERS)
