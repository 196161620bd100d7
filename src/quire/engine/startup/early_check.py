"""Checks before any weight is read whether the configuration is possible, and whether one request
of the model length fits: no minutes of loading are spent to learn that it does not. Facts that the
model's configuration lacks are left to the checks after the load. Of several ranks it is one that
is checked."""

import logging

import torch

from quire.cache.footprint import Footprint
from quire.cache.layout import Layout
from quire.cache.sizing import MIB, KVCapacity
from quire.engine.config import EngineConfig, MemoryConfig
from quire.engine.devices.memory import DeviceMemory, measure, step_budget
from quire.engine.startup.kv_plan import AvailableMemory, Limits, solve_kv
from quire.engine.startup.state_plan import LEAST_STATES
from quire.engine.startup.swap_space import swap_space
from quire.models.attention.backend import AttentionSetup
from quire.models.attention.choice import attention_name
from quire.models.config import KVOptions
from quire.models.kv.kv_codec import choose_codec
from quire.models.loading.preview import Preview

logger = logging.getLogger(__name__)

INDEX_BYTES = 8


def least_token_bytes(vocab_size: int, dtype_bytes: int, layout: Layout) -> int:
    """Return the least bytes that a token of a step takes: logits, id, position and slots."""
    return vocab_size * dtype_bytes + (2 + len(layout.tables)) * INDEX_BYTES


def check_before_load(
    config: EngineConfig,
    preview: Preview,
    limits: Limits,
    device: torch.device,
    memory: DeviceMemory,
) -> None:
    """Raise ValueError or TooLittleMemory as the checks after the load would. It requires no more
    than they do: steps as small as they may be, and no memory for weights that a host maps from
    their files. `memory` is that of `device`.
    """
    layout = preview.layout(config.kv_options)
    if memory.is_host:
        memory = memory.share(config.model.tensor_parallel_size)
    _check_attention(config.kv_options, preview, layout, device)
    _check_swap_space(config, preview, layout, memory)
    if layout is None:
        logger.info(
            "memory is not checked before the load: the configuration of %s models does not tell "
            "the shape of their K and V",
            preview.model_type,
        )
        return
    _check_blocks(config.memory, preview, limits, layout, memory)


def _check_blocks(
    config: MemoryConfig, preview: Preview, limits: Limits, layout: Layout, memory: DeviceMemory
) -> None:
    is_mapped = memory.is_host and preview.are_kept
    weight_bytes = 0 if is_mapped else preview.weight_bytes
    available = step_budget(memory, config.budget, weight_bytes=weight_bytes)
    state_bytes = preview.state_bytes
    num_states = LEAST_STATES if state_bytes else 0
    block_bytes = layout.block_bytes(config.block_size)
    left = max(available - num_states * state_bytes, 0)
    num_blocks = left // block_bytes if block_bytes else 1
    given = config.budget.blocks(
        layout, block_size=config.block_size, max_chunk_tokens=limits.max_step_tokens
    )
    if given is not None:
        num_blocks = min(num_blocks, given)
    capacity = KVCapacity(
        layout,
        num_blocks,
        config.block_size,
        limits.num_tokens or limits.max_num_seqs,
        num_states,
    )
    logger.info(
        "before the load: weights %.1f MiB; one request of %d tokens needs %.1f MiB of KV and "
        "%.1f MiB of states; %.1f MiB are available to it",
        preview.weight_bytes / MIB,
        limits.max_model_len,
        (capacity.max_blocks(limits.max_model_len) + 1) * block_bytes / MIB,
        num_states * state_bytes / MIB,
        (num_blocks * block_bytes + num_states * state_bytes) / MIB,
    )
    capacity.check(limits.max_model_len, config.budget)
    least = least_token_bytes(preview.vocab_size, preview.dtype_bytes or 0, layout)
    footprint = Footprint(
        config.block_size, block_bytes, least, num_states=num_states, state_bytes=state_bytes
    )
    usable = AvailableMemory(available, memory.is_unified, config.enable_prefix_caching)
    solve_kv(layout, footprint, limits, config.budget, usable)


def _check_attention(
    options: KVOptions, preview: Preview, layout: Layout | None, device: torch.device
) -> None:
    if preview.dtype is None:
        return
    token_kvs = [] if layout is None else [form.token_kv for form in layout.forms]
    site = AttentionSetup(
        device,
        choose_codec(options.dtype, preview.dtype),
        head_size=max((token_kv.head_size for token_kv in token_kvs), default=0),
        v_head_size=max((token_kv.v_head_size for token_kv in token_kvs), default=0),
        disabled=options.disabled,
    )
    attention_name(options.attention, site)


def _check_swap_space(
    config: EngineConfig, preview: Preview, layout: Layout | None, memory: DeviceMemory
) -> None:
    num_ranks = config.model.tensor_parallel_size
    host = memory if memory.is_host else measure(torch.device("cpu")).share(num_ranks)
    block_bytes = 1 if layout is None else layout.host_block_bytes(config.memory.block_size)
    space = swap_space(config, block_bytes, preview.state_bytes, is_host=memory.is_host)
    space.check(host.available)
