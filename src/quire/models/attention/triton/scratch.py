"""An upper bound of the Triton backend's allocations in a step beside the activations: the parts of
contexts that are cut, the step's inputs, and its work lists. Layers take turns with the same memory
for parts. A program has two parts at most that are not whole contexts, of no more rows than
a tile: that bounds them, however many heads and sequences there are."""

from collections.abc import Sequence

from quire.models.attention.scratch import FLOAT32_BYTES, StepLimits
from quire.models.attention.triton.inputs import ALIGNMENT
from quire.models.attention.triton.tiles import (
    MIN_ROWS,
    DeviceProperties,
    choose_tile,
    num_programs,
)
from quire.models.config import LayerFacts
from quire.models.kv.kv_codec import Codec

INT32_BYTES = 4


def triton_scratch_bytes(
    layers: Sequence[LayerFacts], limits: StepLimits, codec: Codec, device: DeviceProperties
) -> int:
    inputs = (2 * limits.num_seqs + 1 + ALIGNMENT) * INT32_BYTES
    lists = len({_list_kind(layer) for layer in layers}) * (limits.num_seqs + 2) * INT32_BYTES
    return inputs + lists + max((_part_bytes(layer, codec, device) for layer in layers), default=0)


def _list_kind(layer: LayerFacts) -> tuple[object, ...]:
    return layer.pattern, layer.num_kv_heads, layer.head_size, layer.v_head_size


def _part_bytes(layer: LayerFacts, codec: Codec, device: DeviceProperties) -> int:
    tiles = (choose_tile(layer, codec, rows, device) for rows in (MIN_ROWS, MIN_ROWS + 1))
    num_rows = max(2 * num_programs(layer, codec, tile, device) * tile.rows for tile in tiles)
    return num_rows * (layer.v_head_size + 1) * FLOAT32_BYTES
