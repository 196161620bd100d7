"""A toy engine under a script of arrivals and aborts, and what each request would say alone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.spec import AttentionPattern
from quire.cache.states.policy import PLANNED, SnapshotPolicy
from quire.engine.engine import Engine
from quire.engine.grammar.grammars import Grammars
from quire.engine.runner import Runner, RunnerConfig
from quire.engine.sampling.build_sampler import build_sampler
from quire.engine.sampling.logits_processor import ProcessorContext
from quire.engine.sampling.sampling_state import build_sampling_state
from quire.models.batch import Model
from quire.models.config import KVSize
from quire.models.toy import TWO_FULL, ToyLayers, ToyModel, ToyText, toy_layout
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName, QueueOrder
from quire.scheduler.request import Event, NewRequest, PoolingKind, ResumedOutput
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta, Refusal
from tests.engine.toy_grammars import ToyGrammars
from tests.models.timed_model import StepTimes, TimedModel

VOCAB_SIZE = 24
MAX_MODEL_LEN = 48
GRAMMARS = ToyGrammars(VOCAB_SIZE)
BETWEEN_S = 1 / 64
"""Seconds between two steps of a device that takes time by tokens."""


@dataclass(frozen=True)
class Shape:
    """Everything that must not change a request's output."""

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    caches_prefixes: bool
    watermark: float
    late: bool
    layers: ToyLayers = TWO_FULL
    hybrid: bool = True
    policy: PolicyName = PolicyName.FCFS
    ageing_s: float = 30.0
    queue_order: QueueOrder = QueueOrder.ARRIVAL
    max_skips: int = 16
    num_host_blocks: int = 0
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    wait_for_prefix: bool = True
    keep_sessions: bool = True
    num_states: int = 0
    """The states of recurrent layers, two or more where there are such layers."""
    snapshots: SnapshotPolicy = PLANNED
    num_host_states: int = 0
    times: StepTimes | None = None
    """None for a second between two steps, and steps that take none."""


@dataclass(frozen=True)
class Arrival:
    new: NewRequest
    step: int
    abort_step: int | None = None


def cache_of(shape: Shape, groups: tuple[AttentionPattern, ...]) -> KVCache:
    return KVCache(
        CacheConfig(
            shape.num_blocks,
            shape.block_size,
            shape.caches_prefixes,
            groups,
            max_chunk_tokens=shape.max_num_batched_tokens,
            num_host_blocks=shape.num_host_blocks,
            num_states=shape.num_states,
            snapshots=shape.snapshots,
            num_host_states=shape.num_host_states,
        )
    )


def scheduler_config(shape: Shape) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        max_num_queued_reqs=1000,
        watermark=shape.watermark,
        scheduling_policy=shape.policy,
        priority_ageing_s=shape.ageing_s,
        queue_order=shape.queue_order,
        max_skips=shape.max_skips,
        preemption_mode=shape.preemption_mode,
        wait_for_prefix=shape.wait_for_prefix,
        keep_sessions=shape.keep_sessions,
    )


Wrap: TypeAlias = Callable[[ToyModel], Model]
"""Puts something between the runner and the toy."""


def bare(model: ToyModel) -> Model:
    return model


def runner_of(shape: Shape, *, wrap: Wrap = bare, grammars: Grammars = GRAMMARS.grammars) -> Runner:
    config = RunnerConfig(
        max_num_seqs=shape.max_num_seqs,
        max_num_blocks=-(-MAX_MODEL_LEN // shape.block_size),
        block_size=shape.block_size,
        device="cpu",
        tables=toy_layout(shape.layers, hybrid=shape.hybrid).tables,
    )
    size = KVSize(
        shape.num_blocks,
        shape.block_size,
        shape.num_host_blocks,
        shape.num_states,
        shape.num_host_states,
    )
    model = ToyModel(VOCAB_SIZE, size, shape.layers, hybrid=shape.hybrid)
    return Runner(config, wrap(model), grammars)


class World:
    """Turns a shape into cache, scheduler and runner; `late`: by an engine that is overlapped."""

    def __init__(
        self,
        shape: Shape,
        now: float = 0.0,
        wrap: Wrap = bare,
        grammars: Grammars = GRAMMARS.grammars,
    ) -> None:
        groups = toy_layout(shape.layers, hybrid=shape.hybrid).patterns
        self.cache = cache_of(shape, groups)
        self.scheduler = Scheduler(scheduler_config(shape), self.cache)
        times = shape.times
        between = wrap if times is None else lambda toy: TimedModel(wrap(toy), times, self._pass)
        runner = runner_of(shape, wrap=between, grammars=grammars)
        self.now = now
        self._between_s = 1.0 if times is None else BETWEEN_S
        self._engine = Engine(self.scheduler, runner, lambda: self.now, is_overlapped=shape.late)
        self.num_computed = 0
        self.deltas: dict[str, list[Delta]] = {}
        self.refusals: dict[str, Refusal] = {}

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    def add(self, new: NewRequest, resumed: ResumedOutput | None = None) -> None:
        refusal = self._engine.submit(new, resumed)
        if refusal is None:
            self.deltas[new.id] = []
        else:
            self.refusals[new.id] = refusal

    def abort(self, request_id: str) -> None:
        aborted = self._engine.abort(request_id)
        if aborted is not None:
            self.deltas[request_id].append(aborted)

    def note_turn(self, request_id: str, *, calls_tools: bool) -> None:
        self._engine.note_turn(request_id, calls_tools=calls_tools)

    def reset_prefix_cache(self) -> None:
        self._engine.reset_prefix_cache()

    def idle_until(self, time_s: float) -> None:
        """Let time pass in which there is no step, if that time is still to come."""
        self.now = max(self.now, time_s)

    def step(self) -> None:
        """One step; every step checks the accounts."""
        self._pass(self._between_s)
        output = self._engine.step()
        self.num_computed += output.num_tokens
        for delta in output.deltas:
            self.deltas[delta.request_id].append(delta)
        self.cache.check()

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def take_events(self) -> tuple[tuple[str, Event], ...]:
        return self._engine.take_events()

    def tokens_of(self, request_id: str) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas[request_id] for token in delta.token_ids)


def play(shape: Shape, arrivals: list[Arrival], max_steps: int, wrap: Wrap = bare) -> World:
    """Until all is done; invariant 3 is the bound on steps."""
    world = World(shape, wrap=wrap)
    last = max(max(arrival.step, arrival.abort_step or 0) for arrival in arrivals)
    for step in range(max_steps):
        for arrival in arrivals:
            if arrival.step == step:
                world.add(arrival.new)
            if arrival.abort_step == step:
                world.abort(arrival.new.id)
        world.step()
        if step > last + 1 and not world.has_work:
            return world
    raise AssertionError(f"not done after {max_steps} steps")


def alone(new: NewRequest, layers: ToyLayers = TWO_FULL) -> tuple[int, ...]:
    """The request's whole output by the oracle: no cache, no blocks, no batch, one token a time."""
    text = NewRequest("", new.prompt_token_ids, new.sampling, new.stopping)
    return _alone(text, layers)


def vector_alone(new: NewRequest, layers: ToyLayers = TWO_FULL) -> bytes:
    """The vector of a request that pools its prompt, by the oracle. The toy's states are small
    whole numbers: their sums are exact, whatever their order."""
    assert new.pooling is not None
    text, states = ToyText(VOCAB_SIZE, layers), []
    for token in new.prompt_token_ids:
        text.append(token)
        states.append(text.states().numpy().astype(np.float64))
    pooled = {
        PoolingKind.LAST: states[-1],
        PoolingKind.CLS: states[0],
        PoolingKind.MEAN: np.sum(states, axis=0) / len(states),
    }[new.pooling.kind][: new.pooling.num_dimensions]
    length = np.sqrt((pooled * pooled).sum())
    vector = pooled / length if new.pooling.is_normalized and length else pooled
    return bytes(vector.astype(np.float32).data)


@lru_cache(maxsize=100_000)
def _alone(new: NewRequest, layers: ToyLayers) -> tuple[int, ...]:
    sampler = build_sampler(VOCAB_SIZE, torch.device("cpu"))
    outputs = 0
    text = ToyText(VOCAB_SIZE, layers)
    for token in new.prompt_token_ids:
        text.append(token)
    num_prompt_tokens = len(new.prompt_token_ids)
    context = ProcessorContext(new.sampling, new.stopping, new.prompt_token_ids, num_prompt_tokens)
    row = build_sampling_state(context, constraint=GRAMMARS.processor(context))
    while outputs < new.stopping.max_tokens and row.position < MAX_MODEL_LEN:
        (token,) = sampler.sample(text.logits()[None], [row]).result().token_ids
        row.append(token)
        text.append(token)
        outputs += 1
        if token in new.stopping.eos_token_ids:
            break
        if outputs > new.stopping.min_tokens and token in new.stopping.stop_token_ids:
            break
    return tuple(row.token_ids[num_prompt_tokens:])
