"""The speed of whole models of random weights: an engine in this process, its decode steps beside
the time to read weights and K and V once, and the share of it in which the device is idle."""

import gc
import statistics
from collections.abc import Iterator
from typing import NamedTuple

import torch

from bench.gpu.check import Finding, Place
from bench.gpu.speed.ceilings import ceilings
from bench.gpu.speed.decoding import (
    GREEDY,
    LOAD,
    REHEARSED_LOAD,
    Load,
    build_engine,
    decode,
    first_token_s,
    profile_decode,
    prompts_of,
)
from bench.gpu.speed.floor import Rates, judge
from bench.gpu.speed.llama import (
    SIZES,
    Llama,
    Weights,
    count_weights,
    decode_work,
    make_checkpoint,
    prefill_work,
)
from bench.gpu.speed.timing import Timing
from quire.engine.engine import Engine
from quire.models.config import CUDAGraphMode
from quire.scheduler.request import Sampling

SAMPLINGS = {"top_p 0.9": Sampling(top_p=0.9), "top_k 50": Sampling(top_k=50)}
REHEARSED = {"1b": "tiny", "8b": "tiny-untied"}


class _Model(NamedTuple):
    """A model under measurement."""

    name: str
    size: Llama
    weights: Weights
    load: Load
    device: torch.device

    def prompts(self, batch: int, seed: int) -> list[list[int]]:
        return prompts_of(batch, self.load.num_prompt, self.size.vocab, seed)


def check_1b(place: Place) -> Iterator[Finding]:
    """Measure a 1B model, also without graphs, and sampling with it."""
    model, rates = _prepared("1b", place), ceilings(place).rates
    engine = build_engine(place.folder / model.name, place.device, model.load)
    yield from _decoded(model, engine, rates)
    yield from _first_token(model, engine, rates)
    yield from _sampled(model, engine)
    engine.close()
    del engine
    gc.collect()
    middle = model.load.batches[len(model.load.batches) // 2]
    eager = model._replace(name=f"{model.name}, eager", load=model.load._replace(batches=(middle,)))
    folder = place.folder / model.name
    yield from _decoded(
        eager, build_engine(folder, place.device, eager.load, mode=CUDAGraphMode.NONE), rates
    )


def check_8b(place: Place) -> Iterator[Finding]:
    """Measure an 8B model."""
    model, rates = _prepared("8b", place), ceilings(place).rates
    engine = build_engine(place.folder / model.name, place.device, model.load)
    yield from _decoded(model, engine, rates)
    yield from _first_token(model, engine, rates)
    engine.close()


def _prepared(name: str, place: Place) -> _Model:
    """Write the model's checkpoint unless the run has it: a tiny one's in a rehearsal."""
    name, load = (REHEARSED[name], REHEARSED_LOAD) if place.is_rehearsal else (name, LOAD)
    make_checkpoint(place.folder / name, SIZES[name], place.device)
    gc.collect()
    if place.device.type == "cuda":
        torch.cuda.empty_cache()
    return _Model(name, SIZES[name], count_weights(SIZES[name]), load, place.device)


def _decoded(model: _Model, engine: Engine, rates: Rates) -> Iterator[Finding]:
    load = model.load
    for batch in load.batches:
        decode(engine, model.prompts(batch, seed=batch), load.num_output)  # warms up
        runs = [
            decode(engine, model.prompts(batch, seed=repeat), load.num_output)
            for repeat in range(load.num_repeats)
        ]
        timing = Timing.of([run.step_s for run in runs])
        work = decode_work(model.size, model.weights, batch, load.context)
        yield judge(
            f"{model.name}, decode at {batch}",
            timing,
            work,
            rates,
            times_floor=timing.median_s / work.floor_s(rates),
            tokens_s=statistics.median(run.tokens_s for run in runs),
        )
        yield _profiled(model, engine, batch, 1e3 * timing.median_s)


def _profiled(model: _Model, engine: Engine, batch: int, step_ms: float) -> Finding:
    """Return how much of the steps that were timed the device does something."""
    prompts = model.prompts(batch, seed=batch)
    found = profile_decode(engine, prompts, model.load.num_output, model.device)
    figures = {**found._asdict(), "idle_share": found.idle_share(step_ms)}
    return Finding(f"{model.name}, the device in a step at {batch}", figures)


def _first_token(model: _Model, engine: Engine, rates: Rates) -> Iterator[Finding]:
    """Time the first token of a long prompt."""
    load, taken_s = model.load, []
    for seed in range(load.num_repeats + 1):
        (prompt,) = prompts_of(1, load.num_long, model.size.vocab, seed)
        taken_s.append(first_token_s(engine, prompt))
    timing = Timing.of(taken_s[1:])  # the first one warms up
    work = prefill_work(model.size, model.weights, load.num_long)
    yield judge(f"{model.name}, first token of a prompt of {load.num_long}", timing, work, rates)


def _sampled(model: _Model, engine: Engine) -> Iterator[Finding]:
    """Time steps that sample, in turn with greedy ones."""
    load, batch = model.load, model.load.batches[-1]
    samplings = {"greedy": GREEDY, **SAMPLINGS}
    steps_s: dict[str, list[float]] = {name: [] for name in samplings}
    for repeat in range(load.num_repeats + 1):
        for name, sampling in samplings.items():
            run = decode(engine, model.prompts(batch, repeat), load.num_output, sampling)
            steps_s[name].append(run.step_s)
    medians_ms = {
        name: 1e3 * statistics.median(taken_s[-load.num_repeats :])
        for name, taken_s in steps_s.items()
    }
    for name in SAMPLINGS:
        ms, greedy_ms = medians_ms[name], medians_ms["greedy"]
        yield Finding(
            f"{model.name}, {name} at {batch}",
            {"ms": ms, "greedy_ms": greedy_ms, "times_greedy": ms / greedy_ms},
        )
