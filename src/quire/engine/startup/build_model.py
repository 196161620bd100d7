"""Builds an engine over a checkpoint: check what can be checked, load it, run its largest step once
to measure it, and divide the memory that is left into blocks.
"""

import logging
from collections.abc import Callable
from functools import partial

import msgspec
import torch
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.block_pool import NULL_BLOCK
from quire.cache.footprint import Footprint
from quire.cache.layout import Layout
from quire.cache.sizing import MIB, TooLittleMemory
from quire.engine.config import EngineConfig
from quire.engine.devices.memory import peak_bytes
from quire.engine.devices.placement import (
    choose_placement,
    own_part,
    prepare_threads_and_device,
)
from quire.engine.devices.platform import THIS_MACHINE, Platform
from quire.engine.engine import Engine
from quire.engine.grammar.exact_tokenizer import GrammarVocabulary
from quire.engine.grammar.vocabulary_reader import VocabularyReader
from quire.engine.messages import EngineFacts, EngineFailure
from quire.engine.ranks.follower import follow
from quire.engine.ranks.leader import Leader
from quire.engine.ranks.leading_model import LeadingModel
from quire.engine.ranks.loaded_ranks import LoadedRanks
from quire.engine.ranks.processes import start_ranks
from quire.engine.sampling.build_sampler import warm_up_sampler
from quire.engine.startup.assemble import OnProgress, assemble, build_runner
from quire.engine.startup.early_check import check_before_load
from quire.engine.startup.embedding.build_encoder import build_encoder_engine
from quire.engine.startup.embedding.embeddings import embedding_facts
from quire.engine.startup.graphs import kinds_to_record, with_graphs
from quire.engine.startup.kv_plan import KVPlan, Limits
from quire.engine.startup.loading import load_ranks
from quire.engine.startup.null_batch import NullBatches
from quire.engine.startup.receipt import kept_whole_warning, padding_warning, receipt_text
from quire.engine.startup.sizing import (
    Sizing,
    StepMemory,
    choose_limits,
    largest_step,
    step_limits,
)
from quire.engine.startup.start import (
    PhaseTimer,
    Start,
)
from quire.engine.startup.state_plan import LEAST_STATES
from quire.engine.startup.weights_cache import check_weights_cache
from quire.models.batch import Model
from quire.models.graphs.capture import GraphDevice
from quire.models.hf import HFModel
from quire.models.kv.huge_pages import return_free_memory
from quire.models.loading.checkpoint import ModelSource, locate
from quire.models.loading.checkpoint_kind import is_encoder
from quire.models.loading.preview import look_ahead
from quire.models.target import Target

logger = logging.getLogger(__name__)

WARM_UP_TOKENS = (64, 2, 1)


def build_model_engine(
    config: EngineConfig,
    timer: PhaseTimer,
    *,
    on_progress: OnProgress,
    on_rank_lost: Callable[[EngineFailure], None] | None = None,
    platform: Platform = THIS_MACHINE,
) -> tuple[Engine, EngineFacts]:
    """Return an engine over a checkpoint, and its facts.

    `on_rank_lost` is that of `Leader`; ranks are forked with `platform`, and those that cannot be
    forked have THIS_MACHINE. Raises CheckpointError, UnsupportedModel, TooLittleMemory,
    RanksFailed, and ValueError for options that the model or device does not support.
    """
    config = own_part(config)
    num_ranks = config.model.tensor_parallel_size
    if num_ranks == 1:
        return _build(config, on_progress, timer, platform)
    # they are forked: no thread and no context of a GPU may be there yet
    leader = Leader(start_ranks(num_ranks, partial(follow, platform=platform)), on_rank_lost)
    try:
        return _build(config, on_progress, timer, platform, leader)
    except BaseException:
        leader.close()
        raise


def _build(
    config: EngineConfig,
    on_progress: OnProgress,
    timer: PhaseTimer,
    platform: Platform,
    leader: Leader | None = None,
) -> tuple[Engine, EngineFacts]:
    placement = choose_placement(config.model)
    check_weights_cache(config.model, placement)
    prepare_threads_and_device(placement.device, config.model)
    source = ModelSource(config.model.model, config.model.revision, config.model.trust_remote_code)
    folder = locate(source, on_progress)
    start = Start(config, folder, placement, timer, on_progress, leader, platform)
    timer.end("files")
    if not is_encoder(start.folder):
        return _build_causal(start)
    if leader is not None:
        raise ValueError(
            "this model is an encoder, which is not divided: --tensor-parallel-size does not go "
            "with it"
        )
    return build_encoder_engine(start)


def _build_causal(start: Start) -> tuple[Engine, EngineFacts]:
    """Return an engine over a model that continues texts, and its facts."""
    config, folder = start.config, start.folder
    timer, on_progress = start.timer, start.on_progress
    limits = _limits_before_load(start)
    timer.end("outline")
    loaded, vocabulary = _load(start)
    sizing = Sizing(config, loaded.local, limits)
    footprint = _profile(sizing, loaded, on_progress)
    timer.end("profile")
    memories = loaded.memories()
    footprint = sizing.with_states(footprint, memories)
    plan = sizing.plan(footprint, memories)
    model = _attach(config, loaded, plan)
    timer.end("kv_cache")
    graph_device = loaded.graph_device
    if graph_device is not None:
        logits = _warm_up(model, plan, loaded.local.device, graph_device)
        warm_up_sampler(logits, config.model.disable_optimizations)
        timer.end("warm_up")
    recorded = with_graphs(config.model, model, graph_device, plan, on_progress)
    if graph_device is not None and recorded.model is not model:
        # attention sees other strides in pieces
        _warm_up(recorded.model, plan, loaded.local.device, graph_device)
        timer.end("graphs")
    receipt = sizing.receipt(footprint, plan, memories.device, loaded.local.weight_bytes)
    attention = loaded.local.attention_name(config.kv_options)
    facts = sizing.facts(plan, receipt, attention, timer.seconds)
    embeddings = embedding_facts(
        folder, config.model.pooling, loaded.local.facts, facts.max_model_len
    )
    facts = msgspec.structs.replace(
        facts,
        decode=recorded.decode,
        prefill=recorded.prefill,
        embeddings=embeddings,
        ranks=loaded.facts(
            footprint.block_bytes * facts.num_blocks, footprint.num_states * footprint.state_bytes
        ),
    )
    _log_facts(facts, plan.capacity.layout)
    runner = build_runner(config, facts, plan.capacity.layout, recorded.model, vocabulary)
    return assemble(start.local_config, facts, plan.capacity.layout, runner, timer.clock), facts


def _load(start: Start) -> tuple[LoadedRanks, GrammarVocabulary | None]:
    """Return the model, on all ranks, and its tokens, which are read meanwhile. All of that is in
    memory before steps are measured."""
    reader = VocabularyReader(start.folder)
    loaded = load_ranks(start)
    start.timer.end("load")
    vocabulary = reader.vocabulary(loaded.local.facts)
    start.timer.end("vocabulary")
    return loaded, vocabulary


def _limits_before_load(start: Start) -> Limits:
    """Return the limits, checked before minutes are spent on reading weights. Raises ValueError or
    TooLittleMemory."""
    start.on_progress("outline", 0, 1)
    config, placement = start.config, start.placement
    device, num_ranks = placement.device, config.model.tensor_parallel_size
    preview = look_ahead(
        start.folder,
        Target(placement.dtype, device, placement.kernels, num_ranks),
        trust_remote_code=config.model.trust_remote_code,
    )
    limits = choose_limits(config.scheduling, preview.max_model_len, device)
    check_before_load(config, preview, limits, device, start.platform.measure(device))
    start.on_progress("outline", 1, 1)
    return limits


def _attach(config: EngineConfig, loaded: LoadedRanks, plan: KVPlan) -> HFModel | LeadingModel:
    return loaded.attach(
        plan.capacity.num_blocks,
        plan.capacity.block_size,
        config.kv_options,
        num_host_blocks=plan.num_host_blocks,
        num_states=plan.capacity.num_states,
        num_host_states=plan.num_host_states,
    )


def _profile(sizing: Sizing, loaded: LoadedRanks, on_progress: OnProgress) -> Footprint:
    """Return the bytes of steps and blocks, and free the memory of the measurement."""
    on_progress("profile", 0, 1)
    footprint = sizing.footprint(_measure_step(sizing, loaded))
    return_free_memory()
    on_progress("profile", 1, 1)
    return footprint


def _measure_step(sizing: Sizing, ranks: LoadedRanks) -> StepMemory:
    """Run one step of the whole token budget on the null block, with logits of every token as for
    prompt log probabilities, and return what it takes."""
    config, loaded, limits = sizing.config, sizing.model, sizing.limits
    num_tokens = largest_step(limits)
    block_size = config.memory.block_size
    num_states = LEAST_STATES if loaded.facts.recurrent else 0
    model = ranks.attach(
        num_blocks=1, block_size=block_size, options=config.kv_options, num_states=num_states
    )
    batches = NullBatches(
        block_size, len(sizing.layout.tables), loaded.device, has_states=num_states > 0
    )
    batch = batches.chunk(0, num_tokens)
    try:
        peak = peak_bytes(loaded.device, lambda: model.forward(batch))
    except torch.OutOfMemoryError as error:
        raise TooLittleMemory(
            f"a step of {num_tokens} tokens does not fit beside the weights "
            f"({loaded.weight_bytes / MIB:.1f} MiB): pass a smaller --max-num-batched-tokens"
        ) from error
    return StepMemory(
        num_tokens,
        peak,
        loaded.scratch_bytes(step_limits(limits), config.kv_options),
        recorded=kinds_to_record(config.model, model, ranks.graph_device),
    )


def _warm_up(model: Model, plan: KVPlan, device: torch.device, graph_device: GraphDevice) -> Tensor:
    """Run steps on the null block, so that no request waits while kernels are compiled: those for
    long chunks, for short ones, for single tokens, and for split contexts, and that for copies.
    Return logits."""
    model.copy_blocks([BlockCopy(CopyKind.FORK, NULL_BLOCK, NULL_BLOCK)], ())
    capacity, longest = plan.capacity, plan.limits.max_model_len
    batches = NullBatches(
        capacity.block_size,
        len(capacity.layout.tables),
        device,
        has_states=capacity.num_states > 0,
    )
    for num_tokens in WARM_UP_TOKENS:
        model.forward(batches.chunk(0, min(num_tokens, plan.num_tokens, longest)))
    logits = model.forward(batches.chunk(longest - 1, 1))
    graph_device.free_cached()  # it waits for the device
    model.take_copy_time()  # that of compiling is no measure
    return logits


def _log_facts(facts: EngineFacts, layout: Layout) -> None:
    for warning in (padding_warning(layout), kept_whole_warning(facts.memory)):
        if warning is not None:
            logger.warning(warning)
    logger.info("attention: %s; experts: %s", facts.attention, facts.experts)
    logger.info("decode: %s; prefill: %s", facts.decode, facts.prefill)
    logger.info("%s", receipt_text(facts))
