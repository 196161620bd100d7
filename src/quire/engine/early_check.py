"""Looks, before any weight is read, whether even one request of the model length could fit: minutes
of loading are not spent to learn that it cannot. What the configuration does not tell is left to
the check after the load.
"""

import logging

from quire.cache.sizing import MIB, Room
from quire.engine.config import EngineConfig
from quire.engine.kv_plan import Limits
from quire.engine.memory import DeviceMemory, step_budget
from quire.models.preview import Preview

logger = logging.getLogger(__name__)


def check_before_load(
    config: EngineConfig, preview: Preview, limits: Limits, memory: DeviceMemory
) -> None:
    """Raises TooLittleMemory as the check after the load would. It asks for no more than that one:
    steps as small as they may be, and no room for weights that a host maps from their files.
    """
    layout = preview.layout(config.kv_options)
    if layout is None:
        logger.info(
            "memory is not checked before the load: the configuration of %s models does not tell "
            "the shape of their K and V",
            preview.model_type,
        )
        return
    is_mapped = memory.is_host and preview.are_kept
    weight_bytes = 0 if is_mapped else preview.weight_bytes
    available = step_budget(memory, config.budget, weight_bytes=weight_bytes)
    num_blocks = max(available, 0) // layout.block_bytes(config.block_size)
    given = config.budget.blocks(
        layout, block_size=config.block_size, max_chunk_tokens=limits.most_tokens
    )
    if given is not None:
        num_blocks = min(num_blocks, given)
    room = Room(layout, num_blocks, config.block_size, limits.num_tokens or limits.max_num_seqs)
    logger.info(
        "before the load: weights %.1f MiB; one request of %d tokens needs %.1f MiB of KV; "
        "%.1f MiB are available to it",
        preview.weight_bytes / MIB,
        limits.max_model_len,
        (room.max_blocks(limits.max_model_len) + 1) * room.block_bytes / MIB,
        num_blocks * room.block_bytes / MIB,
    )
    room.check(limits.max_model_len, config.budget)
