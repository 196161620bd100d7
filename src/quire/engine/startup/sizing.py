"""The decisions of a start about memory, from its measurements. A plan without weights uses the
same code with expected measurements."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from quire.cache.footprint import Footprint
from quire.cache.layout import Layout
from quire.engine.config import EngineConfig, SchedulingConfig
from quire.engine.devices.memory import DeviceMemory, Memories, step_budget
from quire.engine.messages import EngineFacts, ReceiptLine
from quire.engine.sampling.build_sampler import sampler_bytes
from quire.engine.startup.disk import staging_bytes
from quire.engine.startup.early_check import least_token_bytes
from quire.engine.startup.kv_plan import AvailableMemory, KVPlan, Limits, plan_kv
from quire.engine.startup.receipt import memory_facts
from quire.engine.startup.start import DEFAULT_BATCHED_TOKENS, is_overlapped
from quire.engine.startup.state_plan import StateDemand
from quire.engine.startup.swap_space import SwapSpace, swap_space
from quire.models.attention.scratch import StepLimits
from quire.models.graphs.piece_recurrence import MOST_OPERATIONS
from quire.models.graphs.sizes import GraphKinds, piece_bytes, record_bytes
from quire.models.loading.loaded_model import LoadedModel


class StepMemory(NamedTuple):
    """The memory of the largest step: of `num_tokens`, it takes `peak_bytes` beside the
    `scratch_bytes` of attention. `recorded` are the steps that become graphs."""

    num_tokens: int
    peak_bytes: int
    scratch_bytes: int
    recorded: GraphKinds


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


def largest_step(limits: Limits) -> int:
    """Return the tokens of the step that is measured: the whole budget, where a request is so
    long."""
    return min(limits.max_step_tokens, limits.max_model_len)


def step_limits(limits: Limits) -> StepLimits:
    """Return the bounds of the scratch memory of every step."""
    return StepLimits(limits.max_model_len, limits.max_num_seqs, limits.max_step_tokens)


@dataclass(frozen=True, slots=True)
class Sizing:
    """Sizes the memory of one model, or of the part that one of several ranks has. Its module may
    be without weights: only the model's facts are read."""

    config: EngineConfig
    model: LoadedModel
    limits: Limits

    @property
    def layout(self) -> Layout:
        return self.model.facts.layout(self.config.kv_options)

    @property
    def swap_space(self) -> SwapSpace:
        block_bytes = self.layout.host_block_bytes(self.config.memory.block_size)
        is_host = self.model.device.type == "cpu"
        return swap_space(self.config, block_bytes, self.model.facts.state_bytes, is_host=is_host)

    def footprint(self, step: StepMemory) -> Footprint:
        """Return the bytes of steps and blocks. The bytes of a token are the peak divided by the
        step's tokens, but at least its logits, id, position and slots."""
        config, facts = self.config, self.model.facts
        least = least_token_bytes(facts.vocab_size, facts.dtype_bytes, self.layout)
        token_bytes = max(-(-step.peak_bytes // step.num_tokens), least)
        graphs = self._graph_bytes(step.recorded, token_bytes)
        disabled = config.model.disable_optimizations
        sampler = sampler_bytes(facts.vocab_size, self.model.device, disabled)
        swap = self.swap_space
        staging = swap.staging_bytes + staging_bytes(
            config.memory, swap.block_bytes, is_host=swap.is_host
        )
        return Footprint(
            block_size=config.memory.block_size,
            block_bytes=self.layout.block_bytes(config.memory.block_size),
            token_bytes=token_bytes,
            fixed_bytes=step.scratch_bytes + sampler + graphs + staging,
            graph_bytes=graphs,
            state_bytes=facts.state_bytes,
        )

    def with_states(self, footprint: Footprint, memories: Memories) -> Footprint:
        """Return the footprint with as many states of recurrent layers as there shall be: each rank
        has its part of every state. Raises TooLittleMemory."""
        config, limits = self.config.memory, self.limits
        demand = StateDemand(
            footprint.state_bytes,
            limits.max_num_seqs,
            config.num_recurrent_states,
            config.enable_prefix_caching,
        )
        available = min(step_budget(each, config.budget) for each in memories.devices)
        least_tokens = limits.num_tokens or limits.max_num_seqs
        left = available - footprint.num_bytes(2, least_tokens)
        return replace(footprint, num_states=demand.num_states(left))

    def _graph_bytes(self, recorded: GraphKinds, token_bytes: int) -> int:
        limits, facts = self.limits, self.model.facts
        decode = record_bytes(limits.max_num_seqs, token_bytes)
        num_cuts = facts.num_layers + MOST_OPERATIONS * len(facts.recurrent)
        pieces = piece_bytes(limits.max_step_tokens, num_cuts, token_bytes)
        return recorded.decode * decode + recorded.pieces * pieces

    def plan(self, footprint: Footprint, memories: Memories) -> KVPlan:
        """Return the blocks of the device and of the host: each rank has its part of every block,
        so that the one with the least memory decides. Raises TooLittleMemory or ValueError."""
        plans = [self._plan(footprint, memory) for memory in memories.devices]
        plan = min(plans, key=lambda each: (each.capacity.num_blocks, each.num_tokens))
        space = self.swap_space
        is_host = memories.device.is_host
        space.check(memories.host.available - (plan.num_bytes if is_host else 0))
        return replace(plan, num_host_blocks=space.num_blocks, num_host_states=space.num_states)

    def _plan(self, footprint: Footprint, memory: DeviceMemory) -> KVPlan:
        config = self.config.memory
        available = AvailableMemory(
            step_budget(memory, config.budget),
            is_unified=memory.is_unified,
            keeps_prefixes=config.enable_prefix_caching,
        )
        return plan_kv(self.layout, footprint, self.limits, config.budget, available)

    def receipt(
        self, footprint: Footprint, plan: KVPlan, memory: DeviceMemory, weight_bytes: int
    ) -> tuple[ReceiptLine, ...]:
        """Return the memory receipt, with `weight_bytes` of weights."""
        return (
            ReceiptLine("device", memory.total),
            ReceiptLine("weights", weight_bytes),
            ReceiptLine("activation", plan.num_tokens * footprint.token_bytes),
            ReceiptLine("scratch", footprint.fixed_bytes - footprint.graph_bytes),
            ReceiptLine("graphs", footprint.graph_bytes),
            ReceiptLine("kv", plan.capacity.num_blocks * footprint.block_bytes),
            ReceiptLine("states", footprint.num_states * footprint.state_bytes),
            ReceiptLine("swap", self.swap_space.num_bytes),
            ReceiptLine("unused", max(memory.available - plan.num_bytes, 0)),
        )

    def facts(
        self,
        plan: KVPlan,
        receipt: tuple[ReceiptLine, ...],
        attention: str,
        startup_s: dict[str, float],
    ) -> EngineFacts:
        """Return the memory facts for the server; `attention` is the name of its backend."""
        config, model, facts = self.config, self.model, self.model.facts
        kept_as = config.memory.kv_cache_dtype
        kv_dtype = kept_as if kept_as.is_quantised else facts.dtype
        return EngineFacts(
            model_type=facts.model_type,
            dtype=facts.dtype,
            device=str(model.device),
            vocab_size=facts.vocab_size,
            max_model_len=plan.limits.max_model_len,
            max_num_seqs=plan.limits.max_num_seqs,
            max_num_batched_tokens=plan.num_tokens,
            block_size=plan.capacity.block_size,
            num_blocks=plan.capacity.num_blocks,
            num_host_blocks=plan.num_host_blocks,
            num_states=plan.capacity.num_states,
            num_host_states=plan.num_host_states,
            eos_token_ids=facts.eos_token_ids,
            receipt=receipt,
            memory=memory_facts(plan.capacity, plan.limits, plan.reasons, kv_dtype=kv_dtype),
            startup_s=startup_s,
            attention=attention,
            experts=model.experts,
            quantization=config.model.quantization,
            async_scheduling=is_overlapped(config.scheduling, model.device),
            has_head=model.has_head,
            left_out=model.left_out,
        )
