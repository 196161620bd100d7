"""An upper bound of what the Triton backend allocates in a step beside the activations: the parts
of contexts that are cut, and the step's inputs. Layers take turns with the same memory.

Contexts are cut among no more programs than PROGRAMS_PER_SM, and a program has no more rows than a
tile: that bounds the parts, however many heads and sequences there are.
"""

from collections.abc import Sequence

from quire.models.attention.scratch import FLOAT32_BYTES, StepLimits
from quire.models.attention.triton.inputs import ALIGNMENT
from quire.models.attention.triton.tiles import MIN_ROWS, PROGRAMS_PER_SM, Device, choose_tile
from quire.models.config import LayerFacts
from quire.models.kv.kv_codec import Codec

INT32_BYTES = 4


def triton_scratch_bytes(
    layers: Sequence[LayerFacts], limits: StepLimits, codec: Codec, device: Device
) -> int:
    inputs = (2 * limits.num_seqs + 1 + ALIGNMENT) * INT32_BYTES
    return inputs + max((_part_bytes(layer, codec, device) for layer in layers), default=0)


def _part_bytes(layer: LayerFacts, codec: Codec, device: Device) -> int:
    tile = choose_tile(layer, codec, MIN_ROWS + 1, device)
    num_rows = PROGRAMS_PER_SM * device.num_sms * max(tile.rows, MIN_ROWS)
    return num_rows * (layer.v_head_size + 1) * FLOAT32_BYTES
