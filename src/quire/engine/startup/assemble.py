"""Assembles cache, scheduler, runner and engine over a model that has its KV cache."""

import logging
import os
from collections.abc import Callable

from quire.cache.block_hash import BlockHash, HashAlgorithm, build_block_hash
from quire.cache.config import CacheConfig
from quire.cache.layout import Layout
from quire.engine.config import EngineConfig, MemoryConfig
from quire.engine.engine import Engine, EngineExtras
from quire.engine.grammar.exact_tokenizer import GrammarVocabulary
from quire.engine.grammar.grammars import build_grammars
from quire.engine.messages import EngineFacts
from quire.engine.ranks.leading_model import LeadingModel
from quire.engine.runner import Runner, RunnerConfig
from quire.engine.startup.disk import build_disk_cache, open_disk
from quire.engine.startup.recording import build_scheduler
from quire.engine.startup.state_plan import snapshot_policy
from quire.engine.tracing import open_tracing
from quire.models.batch import Model

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, int, int], None]
Clock = Callable[[], float]


def build_runner(
    config: EngineConfig,
    facts: EngineFacts,
    layout: Layout,
    model: Model,
    vocabulary: GrammarVocabulary | None,
) -> Runner:
    """Return a runner over a model that has its KV cache. Without a vocabulary grammars fail."""
    runner_config = RunnerConfig(
        max_num_seqs=facts.max_num_seqs,
        max_num_blocks=-(-facts.max_model_len // facts.block_size),
        block_size=facts.block_size,
        device=facts.device,
        tables=layout.tables,
        cuts_prompts=facts.is_causal,
        disabled=config.model.disable_optimizations,
    )
    return Runner(runner_config, model, build_grammars(vocabulary))


def assemble(
    config: EngineConfig, facts: EngineFacts, layout: Layout, runner: Runner, clock: Clock
) -> Engine:
    """Return an engine with cache and scheduler over a runner. The model that `config` names is a
    folder by now, or the toy."""
    model = runner.model
    endpoint = config.tracing.otlp_traces_endpoint
    tracing = None if endpoint is None else open_tracing(endpoint)
    disk = open_disk(config, facts, layout, model)
    cache_config = _cache_config(config, facts, layout, None if disk is None else disk.fingerprint)
    scheduling = config.scheduling.scheduler_config(
        facts.max_num_batched_tokens, facts.max_model_len, cuts_prompts=facts.is_causal
    )
    cache, scheduler = build_scheduler(config, scheduling, cache_config, tracing)
    root = cache_config.block_hash.root
    closes = [] if tracing is None else [tracing.close]
    closes += [model.close] if isinstance(model, LeadingModel) else []
    beside = EngineExtras(build_disk_cache(disk, cache, scheduler, model, root), closes)
    return Engine(scheduler, runner, clock, beside, is_overlapped=facts.async_scheduling)


def _cache_config(
    config: EngineConfig, facts: EngineFacts, layout: Layout, fingerprint: bytes | None
) -> CacheConfig:
    memory = config.memory
    return CacheConfig(
        facts.num_blocks,
        facts.block_size,
        memory.enable_prefix_caching and facts.is_causal,
        groups=layout.patterns,
        max_chunk_tokens=facts.max_num_batched_tokens,
        num_host_blocks=facts.num_host_blocks,
        num_states=facts.num_states,
        num_host_states=facts.num_host_states,
        snapshots=snapshot_policy(config),
        block_hash=block_hash(memory, fingerprint),
        enable_kv_cache_events=config.tracing.enable_kv_cache_events,
    )


def block_hash(config: MemoryConfig, fingerprint: bytes | None = None) -> BlockHash:
    """Return the hash of blocks. The parent of first blocks is random unless there is a seed; an
    engine that keeps blocks on disk has its `fingerprint` for one."""
    algorithm, seed = config.prefix_caching_hash_algo, config.prefix_caching_seed
    if seed is None and fingerprint is not None:
        seed = fingerprint.hex()
    if algorithm is HashAlgorithm.SHA256_CBOR and seed is None:
        logger.warning(
            "--prefix-caching-hash-algo %s without --prefix-caching-seed: the digests of blocks "
            "are of this process alone",
            algorithm,
        )
    return build_block_hash(algorithm, seed=seed, noise=os.urandom(32))
