"""The limits of an engine that follows another."""

from dataclasses import replace

from quire.engine.config import EngineConfig
from quire.engine.messages import EngineFacts


def as_before(config: EngineConfig, facts: EngineFacts) -> EngineConfig:
    """Return the configuration with the limits that an engine found, so that all it has accepted
    fits the next one."""
    memory = replace(
        config.memory,
        num_gpu_blocks_override=facts.num_blocks,
        kv_cache_memory_bytes=None,
        kv_cache_tokens=None,
        gpu_memory_utilization=None,
    )
    scheduling = replace(
        config.scheduling,
        max_model_len=facts.max_model_len,
        max_num_batched_tokens=facts.max_num_batched_tokens,
    )
    return replace(config, memory=memory, scheduling=scheduling)
