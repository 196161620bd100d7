"""What the C++ kernel allocates in a step, from above: for each thread a tile of packed keys and
values, with its queries, sums and totals, and of quantised ones a tile as the model computes with
them; the sums of what is cut along its keys; and the tasks.
The constants are those of native/plan.h, sizes taken for the widest vectors.
"""

from collections.abc import Sequence

from quire.models.attention.scratch import FLOAT32_BYTES, StepLimits
from quire.models.config import LayerFacts
from quire.models.kv_codec import Codec

TILE = 64
WIDEST = 32
"""Elements that widths are rounded up to."""
MAX_ROWS = 256
"""Of a task, or as many query heads as share a K/V head. No model known here has more."""
TASKS_PER_THREAD = 4
TASK_BYTES = 88
ROW_BYTES = 8
LINE_BYTES = 64
STREAM_BYTES = 1024


def cpu_scratch_bytes(
    layers: Sequence[LayerFacts], limits: StepLimits, codec: Codec, num_threads: int
) -> int:
    """Layers take turns with the same memory."""
    return max((_layer_bytes(layer, limits, codec, num_threads) for layer in layers), default=0)


def _layer_bytes(layer: LayerFacts, limits: StepLimits, codec: Codec, num_threads: int) -> int:
    k_width, v_width = (-(-width // WIDEST) * WIDEST for width in (layer.k_width, layer.v_width))
    tile = TILE * (k_width + v_width) * FLOAT32_BYTES + _read_bytes(layer, codec)
    sums = MAX_ROWS * (v_width * FLOAT32_BYTES + ROW_BYTES) + 2 * LINE_BYTES
    queries = MAX_ROWS * (k_width + WIDEST) * FLOAT32_BYTES
    num_parts = 2 * TASKS_PER_THREAD * num_threads
    num_tasks = limits.max_num_batched_tokens * layer.num_kv_heads + num_parts
    return num_threads * (tile + queries + sums) + num_parts * sums + num_tasks * TASK_BYTES


def _read_bytes(layer: LayerFacts, codec: Codec) -> int:
    if not codec.is_quantised:
        return 0
    width, element_bytes = layer.k_width + layer.v_width, codec.dtype.itemsize
    num_heads = min(max(STREAM_BYTES // (layer.k_width * element_bytes), 1), layer.num_kv_heads)
    return TILE * num_heads * width * element_bytes + 2 * LINE_BYTES
