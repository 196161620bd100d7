"""Plans how a model would be served: its engine's memory receipt, and how fast requests are."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from quire.cache.config import CacheConfig
from quire.engine.config import EngineConfig
from quire.engine.devices.memory import DeviceMemory
from quire.engine.messages import EngineFacts
from quire.engine.startup.outlined import (
    OutlinedDevice,
    OutlinedEngine,
    described_gpu,
    size_outlined,
)
from quire.engine.startup.state_plan import snapshot_policy
from quire.workbench.planning.forecast import Burst, Forecast, forecast
from quire.workbench.planning.this_machine import BUSY, SERVER, is_busy, measured_device
from quire.workbench.simulation.cost.cost_file import FORMAT, CostFile, EngineShape
from quire.workbench.simulation.cost.devices import CPU, THIS, DeviceKind, DeviceSpec, find_device
from quire.workbench.simulation.cost.linearised import coefficients_of
from quire.workbench.simulation.cost.roofline import Roofline
from quire.workbench.simulation.simulation import Costs, EngineSetup

NUM_REQUESTS = (1, 32, 128)
NUM_INPUT_TOKENS, NUM_OUTPUT_TOKENS = 512, 128


class RequestLengths(msgspec.Struct, frozen=True):
    """The tokens in and out of the requests that are forecast; None for what fits the model."""

    num_input_tokens: int | None = None
    num_output_tokens: int | None = None


class ServingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of serving a model.

    options: the options of `quire serve` that were given, as words.
    weight_bytes, token_bytes: what weights take, and K and V of one token in all layers.
    facts: what the engine would tell, its memory receipt among it; None where it would not start,
        as `why_not` says.
    fitting_len: a `--max-model-len` with which it would start then; 0 if there is none.
    forecasts: none where it would not start.
    cost: the cost of its steps, for `quire sim`.
    command: what serves the model so; empty where nothing would.
    """

    model: str
    device: DeviceSpec
    options: tuple[str, ...]
    weight_bytes: int
    token_bytes: int
    facts: EngineFacts | None = None
    why_not: str = ""
    fitting_len: int = 0
    forecasts: tuple[Forecast, ...] = ()
    notes: tuple[str, ...] = ()
    cost: CostFile | None = None
    command: tuple[str, ...] = ()


class PlanRequest(msgspec.Struct, frozen=True):
    """A wish for a plan: a model by the name that was given, None for the bundled one; a device
    by its name or file; options of `quire serve`, as words; and the lengths of requests."""

    model: str | None
    device: str
    options: tuple[str, ...] = ()
    lengths: RequestLengths = RequestLengths()


def build_plan(request: PlanRequest, config: EngineConfig) -> ServingPlan:
    """Return the plan of an engine's configuration. Raises DeviceError, CheckpointError,
    UnsupportedModel, and ValueError for options that the model or the device does not support."""
    known = None if request.device in (CPU, THIS) else find_device(request.device)
    name = "auto" if request.device == THIS else "cpu"
    placed = replace(config, model=replace(config.model, device=name))
    engine = size_outlined(placed, _outlined(known))
    device = known or measured_device(engine)
    plan = ServingPlan(
        model=request.model or "the bundled model",
        device=device,
        options=request.options,
        weight_bytes=engine.weight_bytes,
        token_bytes=engine.token_bytes,
        facts=engine.facts,
        why_not=engine.why_not,
        fitting_len=engine.fitting_len,
    )
    if engine.facts is None:
        return plan
    burst = _burst(request.lengths, engine.facts.max_model_len)
    setup, cost = _setup(config, engine), Roofline(engine.shape, device)
    costs = Costs(cost, server=SERVER)
    bursts = [msgspec.structs.replace(burst, num_requests=number) for number in NUM_REQUESTS]
    notes = _notes(engine, burst)
    return msgspec.structs.replace(
        plan,
        forecasts=tuple(forecast(setup, costs, each) for each in bursts),
        notes=(*notes, BUSY) if known is None and is_busy() else tuple(notes),
        cost=_cost_file(plan, engine.facts, cost),
        command=_command(request, engine.facts),
    )


def _outlined(device: DeviceSpec | None) -> OutlinedDevice:
    """Return what the engine is sized for."""
    if device is None:
        return OutlinedDevice()
    is_cpu = device.kind is DeviceKind.CPU
    total, available = device.memory_bytes, device.memory_bytes - device.reserved_bytes
    memory = DeviceMemory(total, available, is_host=is_cpu, is_unified=is_cpu)
    if is_cpu:
        return OutlinedDevice(memory)
    return described_gpu(memory, device.compute_capability, device.num_multiprocessors)


def _setup(config: EngineConfig, engine: OutlinedEngine) -> EngineSetup:
    """Return the scheduler and the cache that the engine would have."""
    facts, capacity = engine.facts, engine.capacity
    assert facts is not None and capacity is not None, "the engine would start"
    scheduler = config.scheduling.scheduler_config(
        facts.max_num_batched_tokens, facts.max_model_len
    )
    cache = CacheConfig(
        facts.num_blocks,
        facts.block_size,
        config.memory.enable_prefix_caching,
        groups=capacity.layout.patterns,
        max_chunk_tokens=facts.max_num_batched_tokens,
        num_host_blocks=facts.num_host_blocks,
        num_states=facts.num_states,
        num_host_states=facts.num_host_states,
        snapshots=snapshot_policy(config),
    )
    return EngineSetup(scheduler, cache, facts.async_scheduling)


def _cost_file(plan: ServingPlan, facts: EngineFacts, cost: Roofline) -> CostFile:
    """Return the cost of steps as `quire sim` reads it."""
    device = plan.device
    return CostFile(
        FORMAT,
        plan.model,
        device.name,
        f"Planned, not measured: a roofline of the model's weights and attention at "
        f"{device.bytes_s:.3g} bytes/s and {device.flops_of(facts.dtype):.3g} FLOP/s in "
        f"{facts.dtype}. The device: {device.source or 'as its file says'}. The server's part is "
        "assumed.",
        coefficients_of(cost),
        EngineShape(
            num_blocks=facts.num_blocks,
            block_size=facts.block_size,
            max_num_seqs=facts.max_num_seqs,
            max_num_batched_tokens=facts.max_num_batched_tokens,
            max_model_len=facts.max_model_len,
            is_overlapped=facts.async_scheduling,
            token_bytes=facts.memory.kv_token_bytes,
            num_states=facts.num_states,
            state_bytes=_state_bytes(facts),
        ),
        server=SERVER,
    )


def _state_bytes(facts: EngineFacts) -> int:
    """Return the bytes of one state of the recurrent layers, 0 without such layers."""
    if not facts.num_states:
        return 0
    return (
        sum(each.num_bytes for each in facts.receipt if each.kind == "states") // facts.num_states
    )


def _notes(engine: OutlinedEngine, burst: Burst) -> Iterator[str]:
    """Yield what keeps requests of the forecasts from running at once."""
    facts, capacity = engine.facts, engine.capacity
    assert facts is not None and capacity is not None, "the engine would start"
    num_tokens = burst.num_input_tokens + burst.num_output_tokens
    num_held = capacity.num_usable // capacity.max_blocks(num_tokens)
    if num_held < min(facts.max_num_seqs, max(NUM_REQUESTS)):
        yield f"KV memory holds {num_held} requests of {num_tokens} tokens at once; others wait"
    elif facts.max_num_seqs < max(NUM_REQUESTS):
        yield (
            f"--max-num-seqs lets {facts.max_num_seqs} requests run at once; KV memory would hold "
            f"{num_held} requests of {num_tokens} tokens"
        )


def _burst(lengths: RequestLengths, max_model_len: int) -> Burst:
    """Return a burst of one request. Raises ValueError where it is longer than the model's
    requests."""
    num_output = lengths.num_output_tokens or min(NUM_OUTPUT_TOKENS, max(max_model_len // 4, 1))
    rest = max(max_model_len - num_output, 1)
    num_input = lengths.num_input_tokens or min(NUM_INPUT_TOKENS, rest)
    if num_input + num_output > max_model_len:
        raise ValueError(
            f"--input-tokens {num_input} and --output-tokens {num_output} are more than a request "
            f"may have, {max_model_len} (--max-model-len)"
        )
    return Burst(1, num_input, num_output)


def _command(request: PlanRequest, facts: EngineFacts) -> tuple[str, ...]:
    """Return the command that serves the model as planned, what was chosen by itself included."""
    chosen = {
        "--max-model-len": facts.max_model_len,
        "--max-num-seqs": facts.max_num_seqs,
        "--max-num-batched-tokens": facts.max_num_batched_tokens,
        "--block-size": facts.block_size,
    }
    words = ["quire", "serve", *_named(request.model), *request.options]
    for flag, value in chosen.items():
        if flag not in request.options:
            words += [flag, str(value)]
    if request.device == CPU:
        words += ["--device", "cpu"]
    return tuple(words)


def _named(model: str | None) -> Sequence[str]:
    return ("bundled",) if model is None else (model,)
