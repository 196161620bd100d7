"""Assembles cache, scheduler, runner and engine over a model that has its KV cache."""

import logging
import os
from collections.abc import Callable

from quire.cache.block_hash import BlockHash, HashAlgorithm, build_block_hash
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.layout import Layout
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts
from quire.engine.runner import Runner, RunnerConfig
from quire.engine.tracing import TracedKVCache, open_tracing
from quire.models.batch import Model
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, int, int], None]
Clock = Callable[[], float]


def assemble(
    config: EngineConfig, facts: EngineFacts, layout: Layout, model: Model, clock: Clock
) -> Engine:
    """Return an engine with cache, scheduler and runner over a model that has its KV cache."""
    cache_config = CacheConfig(
        facts.num_blocks,
        facts.block_size,
        config.enable_prefix_caching,
        groups=layout.patterns,
        max_chunk_tokens=facts.max_num_batched_tokens,
        num_host_blocks=facts.num_host_blocks,
        block_hash=block_hash(config),
        enable_kv_cache_events=config.enable_kv_cache_events,
    )
    endpoint = config.otlp_traces_endpoint
    tracing = None if endpoint is None else open_tracing(endpoint)
    scheduler = Scheduler(
        scheduler_config(config, facts.max_num_batched_tokens, facts.max_model_len),
        KVCache(cache_config) if tracing is None else TracedKVCache(cache_config, tracing.tracer),
    )
    runner_config = RunnerConfig(
        max_num_seqs=facts.max_num_seqs,
        max_num_blocks=-(-facts.max_model_len // facts.block_size),
        block_size=facts.block_size,
        device=facts.device,
        num_groups=len(layout.groups),
    )
    on_close = None if tracing is None else tracing.close
    return Engine(
        scheduler,
        Runner(runner_config, model),
        clock,
        on_close,
        is_overlapped=facts.async_scheduling,
    )


def block_hash(config: EngineConfig) -> BlockHash:
    """Return the hash of blocks. The parent of first blocks is random unless there is a seed."""
    algorithm, seed = HashAlgorithm(config.prefix_caching_hash_algo), config.prefix_caching_seed
    if algorithm is HashAlgorithm.SHA256_CBOR and seed is None:
        logger.warning(
            "--prefix-caching-hash-algo %s without --prefix-caching-seed: the digests of blocks "
            "are of this process alone",
            algorithm,
        )
    return build_block_hash(algorithm, seed=seed, noise=os.urandom(32))


def scheduler_config(
    config: EngineConfig, max_num_batched_tokens: int, max_model_len: int
) -> SchedulerConfig:
    """Return the scheduler's part of a configuration. Raises ValueError if it is wrong."""
    return SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        max_num_queued_reqs=config.max_num_queued_reqs,
        scheduling_policy=config.scheduling_policy,
        priority_ageing_s=config.priority_ageing_s,
        max_skips=config.max_skips,
        wait_for_prefix=config.wait_for_prefix,
        preemption_mode=config.preemption_mode,
    )
