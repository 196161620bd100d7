"""Sizes the memory of an engine by its model's configuration alone: as a start would, but without
weights, and on a device that need not be there.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from quire.cache.sizing import MIB, KVCapacity, TooLittleMemory
from quire.engine.config import LEAST_MODEL_LEN, TOY_MODEL, EngineConfig, ModelConfig
from quire.engine.devices.memory import DeviceMemory, Memories, measure
from quire.engine.devices.placement import Placement, choose_placement, prepare_threads_and_device
from quire.engine.messages import EngineFacts
from quire.engine.startup.graphs import kinds_of
from quire.engine.startup.kv_plan import Limits
from quire.engine.startup.sizing import Sizing, StepMemory, choose_limits, largest_step, step_limits
from quire.models.attention.choice import PlannedAttention, plan_attention
from quire.models.attention.triton.tiles import DeviceProperties
from quire.models.config import AttentionBackendName, ModelDtype
from quire.models.graphs.sizes import GraphKinds
from quire.models.loading.checkpoint import ModelSource, locate_config
from quire.models.loading.checkpoint_kind import is_encoder, quantised_refusal
from quire.models.loading.formats.weight_format import KernelOptions
from quire.models.loading.kernels import choose_kernels, compute_dtype
from quire.models.loading.outline import Outline, OutlineOptions, outline, read_config, stored_dtype
from quire.models.loading.support import max_model_len
from quire.models.shape import ModelShape

CAPTURED = AttentionBackendName.TRITON.value
"""The attention backend whose decode steps are recorded, by the beginning of its name in logs."""


class OutlinedDevice(NamedTuple):
    """A device to size for. `memory` is that of one which is described; None for this machine's,
    which is measured. `gpu` describes a GPU that is not here."""

    memory: DeviceMemory | None = None
    gpu: DeviceProperties | None = None


def described_gpu(memory: DeviceMemory, capability: int, num_sms: int) -> OutlinedDevice:
    """Return a GPU of a compute capability (90 for 9.0) and so many multiprocessors."""
    return OutlinedDevice(memory, DeviceProperties(capability, num_sms))


@dataclass(frozen=True, slots=True)
class OutlinedEngine:
    """An engine as it would start.

    token_bytes: what K and V of a token take in all layers.
    facts, capacity: None where it would not start, for lack of memory or since its weights are
        quantised in a form that is not read, as `why_not` says.
    fitting_len: a length of requests with which it would start then; 0 if there is none.
    """

    placement: Placement
    weight_bytes: int
    token_bytes: int
    shape: ModelShape
    memory: DeviceMemory
    facts: EngineFacts | None = None
    capacity: KVCapacity | None = None
    why_not: str = ""
    fitting_len: int = 0


def size_outlined(config: EngineConfig, device: OutlinedDevice) -> OutlinedEngine:
    """Return the engine that a configuration would start. Raises CheckpointError, UnsupportedModel,
    and ValueError for options that the model or the device does not support."""
    folder = _located(config.model)
    whole = read_config(folder)
    placement = _placement(config, device)
    refusal = quantised_refusal(folder)
    if placement.dtype is ModelDtype.AUTO and (
        refusal is not None or _is_float32_on_gpu(device, stored_dtype(folder, whole))
    ):
        placement = replace(placement, dtype=ModelDtype.BFLOAT16)
    limits = choose_limits(
        config.scheduling, max_model_len(whole.get_text_config()), placement.device
    )
    options = OutlineOptions(
        placement.device,
        placement.dtype,
        placement.kernels,
        largest_step(limits),
        config.kv_options,
    )
    engine = _sized(config, device, placement, limits, outline(folder, whole, options))
    if refusal is None:
        return engine
    why_not = f"{refusal}. The figures are those of {placement.dtype} weights"
    return replace(engine, facts=None, capacity=None, why_not=why_not, fitting_len=0)


def _located(model: ModelConfig) -> Path:
    """Return the folder with the configuration of a model that can be planned. Raises
    CheckpointError, UnsupportedModel or ValueError."""
    if model.model == TOY_MODEL:
        raise ValueError("the toy has no weights and takes no memory: there is nothing to plan")
    folder = locate_config(ModelSource(model.model, model.revision, model.trust_remote_code))
    if is_encoder(folder):
        raise ValueError("an encoder keeps no keys and values, and takes what its weights take")
    if model.trust_remote_code:
        raise ValueError(
            "a plan runs no code that comes with a model: leave --trust-remote-code out"
        )
    return folder


def _is_float32_on_gpu(device: OutlinedDevice, stored: torch.dtype | None) -> bool:
    """Return whether a GPU that is not here would take weights for bfloat16, as those do that
    multiply it fast."""
    return device.gpu is not None and stored == torch.float32


def _placement(config: EngineConfig, device: OutlinedDevice) -> Placement:
    """Return the device and dtype of the model. Raises ValueError if they are not available."""
    if device.gpu is None:
        placement = choose_placement(config.model)
        prepare_threads_and_device(placement.device, config.model)
        return placement
    model, there = config.model, torch.device("cuda")
    options = KernelOptions(
        model.quantization, model.linear_backend, model.dtype, model.disable_optimizations
    )
    kernels = choose_kernels(options, there)
    return Placement(there, compute_dtype(options, kernels), kernels)


def _sized(
    config: EngineConfig,
    device: OutlinedDevice,
    placement: Placement,
    limits: Limits,
    found: Outline,
) -> OutlinedEngine:
    sizing = Sizing(config, found.loaded, limits)
    attention = _attention(sizing, device)
    memory = device.memory or measure(placement.device)
    engine = OutlinedEngine(
        placement,
        found.weight_bytes,
        len(sizing.layout.groups) * sizing.layout.block_bytes(1),
        found.shape,
        memory,
    )
    recorded = GraphKinds()
    if placement.device.type == "cuda":
        recorded = kinds_of(config.model, is_replayable=attention.name.startswith(CAPTURED))
    step = StepMemory(found.num_tokens, found.step_bytes, attention.scratch_bytes, recorded)
    try:
        return _with_blocks(engine, sizing, step, attention.name)
    except TooLittleMemory as error:
        fitting = _fitting_len(engine, sizing, step)
        return replace(engine, why_not=str(error), fitting_len=fitting)


def _with_blocks(
    engine: OutlinedEngine, sizing: Sizing, step: StepMemory, attention: str
) -> OutlinedEngine:
    """Return the engine with its blocks. Raises TooLittleMemory or ValueError."""
    before = engine.memory
    if engine.weight_bytes > before.available:
        raise TooLittleMemory(
            f"the weights take {engine.weight_bytes / MIB:,.1f} MiB, but the device has "
            f"{before.available / MIB:,.1f} MiB available"
        )
    memory = replace(before, available=before.available - engine.weight_bytes)
    memories = Memories((memory,), _host(memory))
    footprint = sizing.with_states(sizing.footprint(step), memories)
    plan = sizing.plan(footprint, memories)
    receipt = sizing.receipt(footprint, plan, memory, engine.weight_bytes)
    facts = sizing.facts(plan, receipt, attention, {})
    return replace(engine, facts=facts, capacity=plan.capacity)


def _fitting_len(engine: OutlinedEngine, sizing: Sizing, step: StepMemory) -> int:
    """Return the longest length of requests with which the engine starts, of those that come of
    halving the configured one, or more where memory allows; 0 if there is none."""
    limits = sizing.limits
    length = limits.max_model_len // 2
    while length >= LEAST_MODEL_LEN:
        shorter = replace(sizing, limits=replace(limits, max_model_len=length))
        try:
            found = _with_blocks(engine, shorter, step, "").capacity
        except TooLittleMemory:
            length //= 2
            continue
        most = length if found is None else found.largest_length(limits.max_model_len)
        return max(length, most)
    return 0


def _host(memory: DeviceMemory) -> DeviceMemory:
    """Return the memory of the host; that beside a GPU is not known, and taken to be enough."""
    if memory.is_host:
        return memory
    return DeviceMemory(sys.maxsize, sys.maxsize, is_host=True, is_unified=True)


def _attention(sizing: Sizing, device: OutlinedDevice) -> PlannedAttention:
    """Return the attention backend. Raises ValueError where the requested one cannot run."""
    model, options = sizing.model, sizing.config.kv_options
    limits = step_limits(sizing.limits)
    if device.gpu is not None:
        site = model.site(options)
        return plan_attention(options.attention, site, device.gpu, model.facts.layers, limits)
    return PlannedAttention(model.attention_name(options), model.scratch_bytes(limits, options))
