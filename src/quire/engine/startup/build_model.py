"""Builds an engine over a checkpoint: check what can be checked, load it, run its largest step once
to measure it, and divide the memory that is left into blocks.
"""

import logging
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.block_pool import NULL_BLOCK
from quire.cache.footprint import Footprint
from quire.cache.layout import Layout
from quire.cache.sizing import MIB, TooLittleMemory
from quire.engine.config import EngineConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts, ReceiptLine
from quire.engine.sampling.build_sampler import sampler_bytes
from quire.engine.startup.assemble import Clock, OnProgress, assemble
from quire.engine.startup.build_encoder import build_encoder_engine
from quire.engine.startup.disk import staging_bytes
from quire.engine.startup.early_check import check_before_load, least_token_bytes
from quire.engine.startup.embeddings import embedding_facts
from quire.engine.startup.graphs import graph_bytes, with_graphs
from quire.engine.startup.kv_plan import AvailableMemory, KVPlan, Limits, plan_kv
from quire.engine.startup.memory import DeviceMemory, measure, peak_bytes, step_budget
from quire.engine.startup.placement import Placement, choose_placement, prepare_process
from quire.engine.startup.receipt import memory_facts, padding_warning, receipt_text
from quire.engine.startup.start import (
    DEFAULT_BATCHED_TOKENS,
    PhaseTimer,
    Start,
    is_overlapped,
)
from quire.engine.startup.swap_space import SwapSpace, swap_space
from quire.models.attention.scratch import StepLimits
from quire.models.batch import Batch
from quire.models.graphs.graphed_model import GraphedModel
from quire.models.hf import HFModel
from quire.models.kv.huge_pages import return_free_memory
from quire.models.loading.checkpoint import ModelSource, locate
from quire.models.loading.checkpoint_kind import is_encoder
from quire.models.loading.loader import LoadedModel, load_model
from quire.models.loading.preview import look_ahead

logger = logging.getLogger(__name__)


def build_model_engine(
    config: EngineConfig, *, on_progress: OnProgress, clock: Clock, began_s: float | None = None
) -> tuple[Engine, EngineFacts]:
    """Return an engine over a checkpoint, and its facts.

    Raises CheckpointError, UnsupportedModel, TooLittleMemory, and ValueError for options that the
    model or device does not support.
    """
    timer = PhaseTimer(clock, last_s=clock() if began_s is None else began_s)
    timer.end("imports")
    placement = choose_placement(config.model)
    prepare_process(placement.device, config.model.num_threads)
    source = ModelSource(config.model.model, config.model.revision, config.model.trust_remote_code)
    start = Start(config, locate(source, on_progress), placement, timer, on_progress)
    timer.end("files")
    return build_encoder_engine(start) if is_encoder(start.folder) else _build_causal(start)


def _build_causal(start: Start) -> tuple[Engine, EngineFacts]:
    """Return an engine over a model that continues texts, and its facts."""
    config, folder, placement = start.config, start.folder, start.placement
    timer, on_progress = start.timer, start.on_progress
    limits = _limits_before_load(config, placement, folder, on_progress)
    timer.end("outline")
    loaded = _load(config.model, placement, folder, on_progress)
    timer.end("load")
    footprint = _profile(config, loaded, limits, on_progress)
    timer.end("profile")
    memory = measure(placement.device)
    plan = _plan(config, loaded, footprint, limits, memory)
    model = _attach(config, loaded, plan)
    timer.end("kv_cache")
    if placement.device.type == "cuda":
        _warm_up(model, plan, placement.device)
        timer.end("warm_up")
    recorded = with_graphs(config.model, model, placement.device, plan, on_progress)
    if isinstance(recorded.model, GraphedModel):
        timer.end("graphs")
    receipt = _receipt(config, loaded, footprint, plan, memory)
    facts = _facts(config, loaded, plan, receipt, timer.seconds)
    embeddings = embedding_facts(folder, config.model.pooling, loaded.facts, facts.max_model_len)
    facts = msgspec.structs.replace(facts, decode=recorded.decode, embeddings=embeddings)
    _log_facts(facts, plan.capacity.layout)
    engine = assemble(start.local_config, facts, plan.capacity.layout, recorded.model, timer.clock)
    return engine, facts


def choose_limits(config: SchedulingConfig, model_max_len: int, device: torch.device) -> Limits:
    """Return the configured limits, with defaults from the model and the device. Raises ValueError
    if the model cannot have them."""
    max_model_len = config.max_model_len or model_max_len
    if max_model_len > model_max_len:
        raise ValueError(
            f"--max-model-len is {max_model_len}, but this model is made for at most "
            f"{model_max_len}"
        )
    return Limits(
        max_model_len=max_model_len,
        model_max_len=model_max_len,
        max_num_seqs=config.max_num_seqs,
        num_tokens=config.max_num_batched_tokens,
        default_token_budget=DEFAULT_BATCHED_TOKENS.get(device.type, DEFAULT_BATCHED_TOKENS["cpu"]),
    )


def _limits_before_load(
    config: EngineConfig, placement: Placement, folder: Path, on_progress: OnProgress
) -> Limits:
    """Return the limits, checked before minutes are spent on reading weights. Raises ValueError or
    TooLittleMemory."""
    on_progress("outline", 0, 1)
    preview = look_ahead(
        folder,
        dtype=placement.dtype,
        device=placement.device,
        trust_remote_code=config.model.trust_remote_code,
        kernels=placement.kernels,
    )
    limits = choose_limits(config.scheduling, preview.max_model_len, placement.device)
    check_before_load(config, preview, limits, placement.device)
    on_progress("outline", 1, 1)
    return limits


def _load(
    config: ModelConfig, placement: Placement, folder: Path, on_progress: OnProgress
) -> LoadedModel:
    return load_model(
        ModelSource(str(folder), trust_remote_code=config.trust_remote_code),
        dtype=placement.dtype,
        device=placement.device,
        on_progress=on_progress,
        kernels=placement.kernels,
    )


def _plan(
    config: EngineConfig,
    loaded: LoadedModel,
    footprint: Footprint,
    limits: Limits,
    memory: DeviceMemory,
) -> KVPlan:
    """Return the blocks of the device and of the host. Raises TooLittleMemory or ValueError."""
    available = AvailableMemory(
        step_budget(memory, config.memory.budget),
        is_unified=memory.is_unified,
        keeps_prefixes=config.memory.enable_prefix_caching,
    )
    layout = loaded.facts.layout(config.kv_options)
    plan = plan_kv(layout, footprint, limits, config.memory.budget, available)
    host = memory if memory.is_host else measure(torch.device("cpu"))
    space = _swap_space(config, loaded)
    space.check(host.available - (plan.num_bytes if memory.is_host else 0))
    return replace(plan, num_host_blocks=space.num_blocks)


def _attach(config: EngineConfig, loaded: LoadedModel, plan: KVPlan) -> HFModel:
    return loaded.attach(
        plan.capacity.num_blocks,
        plan.capacity.block_size,
        config.kv_options,
        num_host_blocks=plan.num_host_blocks,
    )


def _swap_space(config: EngineConfig, loaded: LoadedModel) -> SwapSpace:
    block_bytes = loaded.facts.layout(config.kv_options).host_block_bytes(config.memory.block_size)
    return swap_space(config, block_bytes, is_host=loaded.device.type == "cpu")


def _profile(
    config: EngineConfig, loaded: LoadedModel, limits: Limits, on_progress: OnProgress
) -> Footprint:
    """Return what steps and blocks take, and give back the memory that measuring took."""
    on_progress("profile", 0, 1)
    footprint = _measure_step(config, loaded, limits)
    return_free_memory()
    on_progress("profile", 1, 1)
    return footprint


def _measure_step(config: EngineConfig, loaded: LoadedModel, limits: Limits) -> Footprint:
    """Run one step of the whole token budget on the null block, with logits of every token as for
    prompt log probabilities, and return what steps and blocks take. The bytes of a token are the
    peak divided by the step's tokens, but at least its logits, id, position and slots.
    """
    layout = loaded.facts.layout(config.kv_options)
    num_tokens = min(limits.max_step_tokens, limits.max_model_len)
    model = loaded.attach(num_blocks=1, block_size=1, options=config.kv_options)
    batch = _chunk(0, num_tokens, len(layout.groups), loaded.device)
    try:
        peak = peak_bytes(loaded.device, lambda: model.forward(batch))
    except torch.OutOfMemoryError as error:
        raise TooLittleMemory(
            f"a step of {num_tokens} tokens does not fit beside the weights "
            f"({loaded.weight_bytes / MIB:.1f} MiB): pass a smaller --max-num-batched-tokens"
        ) from error
    facts = loaded.facts
    step_limits = StepLimits(limits.max_model_len, limits.max_num_seqs, limits.max_step_tokens)
    least = least_token_bytes(facts.vocab_size, facts.dtype_bytes, layout)
    token_bytes = max(-(-peak // num_tokens), least)
    graphs = graph_bytes(
        config.model,
        model,
        loaded.device,
        max_num_seqs=limits.max_num_seqs,
        token_bytes=token_bytes,
    )
    scratch = loaded.scratch_bytes(step_limits, config.kv_options)
    sampler = sampler_bytes(facts.vocab_size, loaded.device, config.model.disable_optimizations)
    swap = _swap_space(config, loaded)
    staging = swap.staging_bytes + staging_bytes(
        config.memory, swap.block_bytes, is_host=swap.is_host
    )
    return Footprint(
        block_size=config.memory.block_size,
        block_bytes=layout.block_bytes(config.memory.block_size),
        token_bytes=token_bytes,
        fixed_bytes=scratch + sampler + graphs + staging,
        graph_bytes=graphs,
    )


def _warm_up(model: HFModel, plan: KVPlan, device: torch.device) -> None:
    """Run steps on the null block, so that no request waits while kernels are compiled: those for
    long chunks, for short ones, for single tokens, and for split contexts, and that for copies."""
    model.copy_blocks([BlockCopy(CopyKind.FORK, NULL_BLOCK, NULL_BLOCK)], ())
    num_groups = len(plan.capacity.layout.groups)
    for num_tokens in (64, 2, 1):
        model.forward(_chunk(0, num_tokens, num_groups, device))
    model.forward(_chunk(plan.limits.max_model_len - 1, 1, num_groups, device))
    torch.cuda.synchronize(device)
    model.take_copy_time()  # that of compiling is no measure


def _chunk(start: int, num_tokens: int, num_groups: int, device: torch.device) -> Batch:
    """Return a batch of one chunk on the null block, whose tokens follow `start` others."""
    positions = torch.arange(num_tokens, device=device)
    table = torch.zeros((1, start + num_tokens), dtype=torch.int32, device=device)
    return Batch(
        input_ids=torch.zeros_like(positions),
        positions=positions + start,
        slots=(torch.zeros_like(positions),) * num_groups,
        block_tables=(table,) * num_groups,
        query_starts=(0, num_tokens),
        context_lens=(start + num_tokens,),
        logits_indices=positions,
    )


def _receipt(
    config: EngineConfig,
    loaded: LoadedModel,
    footprint: Footprint,
    plan: KVPlan,
    memory: DeviceMemory,
) -> tuple[ReceiptLine, ...]:
    return (
        ReceiptLine("device", memory.total),
        ReceiptLine("weights", loaded.weight_bytes),
        ReceiptLine("activation", plan.num_tokens * footprint.token_bytes),
        ReceiptLine("scratch", footprint.fixed_bytes - footprint.graph_bytes),
        ReceiptLine("graphs", footprint.graph_bytes),
        ReceiptLine("kv", plan.capacity.num_blocks * footprint.block_bytes),
        ReceiptLine("swap", _swap_space(config, loaded).num_bytes),
        ReceiptLine("unused", max(memory.available - plan.num_bytes, 0)),
    )


def _facts(
    config: EngineConfig,
    loaded: LoadedModel,
    plan: KVPlan,
    receipt: tuple[ReceiptLine, ...],
    startup_s: dict[str, float],
) -> EngineFacts:
    facts = loaded.facts
    kept_as = config.memory.kv_cache_dtype
    kv_dtype = kept_as if kept_as.is_quantised else facts.dtype
    return EngineFacts(
        model_type=facts.model_type,
        dtype=facts.dtype,
        device=str(loaded.device),
        vocab_size=facts.vocab_size,
        max_model_len=plan.limits.max_model_len,
        max_num_seqs=plan.limits.max_num_seqs,
        max_num_batched_tokens=plan.num_tokens,
        block_size=plan.capacity.block_size,
        num_blocks=plan.capacity.num_blocks,
        num_host_blocks=plan.num_host_blocks,
        eos_token_ids=facts.eos_token_ids,
        receipt=receipt,
        memory=memory_facts(plan.capacity, plan.limits, plan.reasons, kv_dtype=kv_dtype),
        startup_s=startup_s,
        attention=loaded.attention_name(config.kv_options),
        experts=loaded.experts,
        quantization=config.model.quantization,
        async_scheduling=is_overlapped(config.scheduling, loaded.device),
        has_head=loaded.has_head,
    )


def _log_facts(facts: EngineFacts, layout: Layout) -> None:
    warning = padding_warning(layout)
    if warning is not None:
        logger.warning(warning)
    logger.info("attention: %s; experts: %s", facts.attention, facts.experts)
    logger.info("decode: %s", facts.decode)
    logger.info("%s", receipt_text(facts))
