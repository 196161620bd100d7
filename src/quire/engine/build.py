"""From a configuration to an engine: load, measure, size, assemble. Each phase is timed."""

import logging
import os
from collections.abc import Callable

import psutil

from quire.cache.block_hash import BlockHash, HashAlgorithm, build_block_hash
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.layout import Layout
from quire.cache.sizing import Room
from quire.engine.config import TOY_MODEL, EngineConfig, check_memory_options
from quire.engine.engine import Engine
from quire.engine.kv_plan import Limits, Why
from quire.engine.messages import EngineFacts
from quire.engine.receipt import memory_facts
from quire.engine.runner import Runner, RunnerConfig
from quire.engine.swap_space import num_host_blocks
from quire.engine.tracing import TracedKVCache, check_tracing, open_tracing
from quire.models.batch import Model
from quire.models.config import KVSize
from quire.models.toy import ToyModel, toy_layout
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, int, int], None]
Clock = Callable[[], float]

TOY_VOCAB_SIZE = 512
TOY_CONTEXT = 2048
TOY_BLOCKS = 1024
TOY_BATCHED_TOKENS = 512
TOY_LAYOUT = toy_layout()


def build_engine(
    config: EngineConfig, *, on_progress: OnProgress, clock: Clock, began_s: float | None = None
) -> tuple[Engine, EngineFacts]:
    """Raises ValueError or an error of the loader or of sizing, whose text is for people.

    `began_s` is when the process began, by `clock`: what it has done since is a phase of the start.
    """
    check_memory_options(config)
    check_tracing(config.otlp_traces_endpoint)
    budget = config.max_num_batched_tokens or config.max_num_seqs
    scheduler_config(config, budget, config.max_model_len or 2)  # says what is wrong before loading
    if config.model == TOY_MODEL:
        return _build_toy(config, clock)
    from quire.engine.build_model import build_model_engine  # torch and transformers are slow

    return build_model_engine(config, on_progress=on_progress, clock=clock, began_s=began_s)


def assemble(
    config: EngineConfig, facts: EngineFacts, layout: Layout, model: Model, clock: Clock
) -> Engine:
    """Cache, scheduler, runner and engine over a model that has its KV store."""
    cache_config = CacheConfig(
        facts.num_blocks,
        facts.block_size,
        config.enable_prefix_caching,
        groups=layout.retentions,
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
    """Its first parent is random unless the configuration has a seed."""
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


def _build_toy(config: EngineConfig, clock: Clock) -> tuple[Engine, EngineFacts]:
    limits = Limits(
        max_model_len=config.max_model_len or TOY_CONTEXT,
        made_for=TOY_CONTEXT,
        max_num_seqs=config.max_num_seqs,
        num_tokens=config.max_num_batched_tokens,
        knee=TOY_BATCHED_TOKENS,
    )
    size, num_tokens = config.block_size, limits.most_tokens
    asked = config.budget.blocks(TOY_LAYOUT, block_size=size, max_chunk_tokens=num_tokens)
    room = Room(TOY_LAYOUT, asked or TOY_BLOCKS, size, num_tokens)
    num_host = num_host_blocks(
        config,
        TOY_LAYOUT.block_bytes(size),
        is_host=True,
        available=psutil.virtual_memory().available,
    )
    why = Why("as the toy has them", "as the toy takes them")
    facts = EngineFacts(
        model_type=TOY_MODEL,
        dtype="uint64",
        device="cpu",
        vocab_size=TOY_VOCAB_SIZE,
        max_model_len=limits.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=num_tokens,
        block_size=size,
        num_blocks=room.num_blocks,
        num_host_blocks=num_host,
        eos_token_ids=(),
        receipt=(),
        memory=memory_facts(room, limits, why, kv_dtype="uint64"),
        startup_s={},
        async_scheduling=bool(config.async_scheduling),
    )
    model = ToyModel(TOY_VOCAB_SIZE, KVSize(room.num_blocks, size, num_host))
    return assemble(config, facts, TOY_LAYOUT, model, clock), facts
