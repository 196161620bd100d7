"""Plans how a model would be served: its engine's memory receipt, and how fast requests are."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from quire.engine.config import EngineConfig
from quire.engine.messages import EngineFacts
from quire.engine.startup.device_speed import measure_speed
from quire.engine.startup.memory import DeviceMemory
from quire.engine.startup.outlined import (
    OutlinedDevice,
    OutlinedEngine,
    described_gpu,
    size_outlined,
)
from quire.planning.devices import CPU, THIS, Device, DeviceKind, find_device
from quire.planning.forecast import Forecast, Load, StepBounds, forecast
from quire.planning.roofline import Roofline

NUM_REQUESTS = (1, 32, 128)
NUM_INPUT_TOKENS, NUM_OUTPUT_TOKENS = 512, 128


class Overheads(NamedTuple):
    """What a step takes beside its products and attention, in all, for each layer, and for each
    sequence: the engine's own share, and what the server process takes of the same cores."""

    step_s: float
    layer_s: float
    seq_s: float


OVERHEADS = {
    DeviceKind.CPU: Overheads(step_s=1e-3, layer_s=0.0, seq_s=2e-4),
    DeviceKind.CUDA: Overheads(step_s=1e-3, layer_s=5e-6, seq_s=2e-5),
}
"""The overheads of a device that is measured."""
BUSY = "other programs keep this machine busy, so it measures as slower than it is when it serves"


class Lengths(msgspec.Struct, frozen=True):
    """The tokens in and out of the requests that are forecast; None for what fits the model."""

    num_input_tokens: int | None = None
    num_output_tokens: int | None = None


class Plan(msgspec.Struct, frozen=True):
    """A plan of serving a model.

    options: the options of `quire serve` that were given, as words.
    weight_bytes, token_bytes: what weights take, and K and V of one token in all layers.
    facts: what the engine would tell, its memory receipt among it; None where it would not start,
        as `why_not` says.
    fitting_len: a `--max-model-len` with which it would start then; 0 if there is none.
    forecasts: none where it would not start.
    command: what serves the model so; empty where nothing would.
    """

    model: str
    device: Device
    options: tuple[str, ...]
    weight_bytes: int
    token_bytes: int
    facts: EngineFacts | None
    why_not: str
    fitting_len: int
    forecasts: tuple[Forecast, ...]
    notes: tuple[str, ...]
    command: tuple[str, ...]


class PlanRequest(msgspec.Struct, frozen=True):
    """What is to be planned: a model by the name that was given, None for the bundled one; a device
    by its name or file; options of `quire serve`, as words; and the lengths of requests."""

    model: str | None
    device: str
    options: tuple[str, ...] = ()
    lengths: Lengths = Lengths()


def build_plan(request: PlanRequest, config: EngineConfig) -> Plan:
    """Return the plan of an engine's configuration. Raises DeviceError, CheckpointError,
    UnsupportedModel, and ValueError for options that the model or the device does not support."""
    is_here = request.device in (CPU, THIS)
    known = None if is_here else find_device(request.device)
    name = "auto" if request.device == THIS else "cpu"
    placed = replace(config, model=replace(config.model, device=name))
    engine = size_outlined(placed, _outlined(known))
    device = known or _measured(engine)
    shown = request.model or "the bundled model"
    if engine.facts is None:
        return _unfit(request, shown, device, engine)
    forecasts, notes = _forecasts(request, device, engine, engine.facts)
    if is_here and os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        notes = (*notes, BUSY)
    return Plan(
        model=shown,
        device=device,
        options=request.options,
        weight_bytes=engine.weight_bytes,
        token_bytes=engine.token_bytes,
        facts=engine.facts,
        why_not="",
        fitting_len=0,
        forecasts=forecasts,
        notes=notes,
        command=_command(request, engine.facts),
    )


def _unfit(request: PlanRequest, shown: str, device: Device, engine: OutlinedEngine) -> Plan:
    """Return the plan of an engine that would not start."""
    return Plan(
        model=shown,
        device=device,
        options=request.options,
        weight_bytes=engine.weight_bytes,
        token_bytes=engine.token_bytes,
        facts=None,
        why_not=engine.why_not,
        fitting_len=engine.fitting_len,
        forecasts=(),
        notes=(),
        command=(),
    )


def _outlined(device: Device | None) -> OutlinedDevice:
    """Return what the engine is sized for."""
    if device is None:
        return OutlinedDevice()
    is_cpu = device.kind is DeviceKind.CPU
    total, available = device.memory_bytes, device.memory_bytes - device.reserved_bytes
    memory = DeviceMemory(total, available, is_host=is_cpu, is_unified=is_cpu)
    if is_cpu:
        return OutlinedDevice(memory)
    return described_gpu(memory, device.compute_capability, device.num_multiprocessors)


def _measured(engine: OutlinedEngine) -> Device:
    """Return this machine's device by what is measured of it now."""
    shape, kind = engine.shape, DeviceKind(engine.placement.device.type)
    weight_bytes = shape.dense_bytes + shape.head_bytes
    speed = measure_speed(engine.placement, shape.dtype, weight_bytes, shape.hidden_size)
    overheads = OVERHEADS[kind]
    return Device(
        name=f"this machine's {kind.upper()}",
        kind=kind,
        memory_bytes=engine.memory.total,
        reserved_bytes=engine.memory.total - engine.memory.available,
        bandwidth_bytes_s=speed.bytes_s,
        flops_s={shape.dtype: speed.flops_s},
        source="measured for this plan, by the kernels that would serve the model",
        step_overhead_s=overheads.step_s,
        layer_overhead_s=overheads.layer_s,
        seq_overhead_s=overheads.seq_s,
    )


def _forecasts(
    request: PlanRequest, device: Device, engine: OutlinedEngine, facts: EngineFacts
) -> tuple[tuple[Forecast, ...], tuple[str, ...]]:
    """Return the forecasts, and notes on them."""
    load = _load(request.lengths, facts.max_model_len)
    num_tokens = load.num_input_tokens + load.num_output_tokens
    capacity = engine.capacity
    assert capacity is not None, "where there are facts"
    num_held = capacity.num_usable // capacity.max_blocks(num_tokens)
    bounds = StepBounds(facts.max_num_batched_tokens, max(min(facts.max_num_seqs, num_held), 1))
    cost = Roofline(engine.shape, device)
    loads = [msgspec.structs.replace(load, num_requests=number) for number in NUM_REQUESTS]
    found = tuple(forecast(cost, each, bounds) for each in loads)
    return found, tuple(_notes(facts.max_num_seqs, num_held, num_tokens))


def _notes(max_num_seqs: int, num_held: int, num_tokens: int) -> Iterator[str]:
    if num_held < min(max_num_seqs, max(NUM_REQUESTS)):
        yield f"KV memory holds {num_held} requests of {num_tokens} tokens at once; others wait"
    elif max_num_seqs < max(NUM_REQUESTS):
        yield (
            f"--max-num-seqs lets {max_num_seqs} requests run at once; KV memory would hold "
            f"{num_held} of {num_tokens} tokens"
        )


def _load(lengths: Lengths, max_model_len: int) -> Load:
    """Return the load of one request. Raises ValueError where it is longer than the model's
    requests."""
    num_output = lengths.num_output_tokens or min(NUM_OUTPUT_TOKENS, max(max_model_len // 4, 1))
    rest = max(max_model_len - num_output, 1)
    num_input = lengths.num_input_tokens or min(NUM_INPUT_TOKENS, rest)
    if num_input + num_output > max_model_len:
        raise ValueError(
            f"--input-tokens {num_input} and --output-tokens {num_output} are more than a request "
            f"may have, {max_model_len} (--max-model-len)"
        )
    return Load(1, num_input, num_output)


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
    return () if model is None else (model,)
