"""A whole engine on the device: the same text however its steps are taken, no step that waits for
the device, and no more memory than its receipt says."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from tests.models.tape import Waits

from bench.gpu.check import Finding, Place
from bench.gpu.correctness.small_models import (
    BLOCK_SIZE,
    MAX_LEN,
    Way,
    prompts,
    submit,
    texts_of,
    with_engine,
)
from quire.engine.config import MemoryConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.models.config import CUDAGraphMode
from quire.scheduler.cost import PreemptionMode

FAMILIES = ("llama", "gemma2", "gpt_oss", "deepseek_v3")
NUM_SEQS, NUM_NEW, NUM_WATCHED = 16, 16, 50
ROOMY = MemoryConfig(block_size=BLOCK_SIZE, kv_cache_tokens=2 * NUM_SEQS * MAX_LEN, swap_space=0.0)
TIGHT = MemoryConfig(block_size=BLOCK_SIZE, kv_cache_tokens=3 * MAX_LEN, swap_space=0.1)
AT_ONCE = SchedulingConfig(
    max_model_len=MAX_LEN, max_num_seqs=NUM_SEQS, max_num_batched_tokens=40, async_scheduling=False
)
IN_PIECES = "swapped, overlapped, in pieces"


SWAPPED = Way(TIGHT, replace(AT_ONCE, preemption_mode=PreemptionMode.SWAP, async_scheduling=True))
WAYS = {
    "overlapped": Way(ROOMY, replace(AT_ONCE, async_scheduling=True)),
    "swapped": Way(TIGHT, replace(AT_ONCE, preemption_mode=PreemptionMode.SWAP)),
    "swapped, overlapped": SWAPPED,
    "recomputed, overlapped": Way(
        TIGHT,
        replace(AT_ONCE, preemption_mode=PreemptionMode.RECOMPUTE, async_scheduling=True),
    ),
    IN_PIECES: SWAPPED._replace(mode=CUDAGraphMode.FULL_AND_PIECEWISE),
}


class _Said(NamedTuple):
    """The texts of an engine, and how often it did what a way is about."""

    texts: list[list[int]]
    figures: dict[str, int]


def check_texts(place: Place) -> Iterator[Finding]:
    """Text does not depend on overlap, on preemption, on swapping, or on steps in pieces."""
    for family in FAMILIES[:2] if place.is_rehearsal else FAMILIES:
        expected = with_engine(family, place, Way(ROOMY, AT_ONCE), _say).texts
        for name, way in WAYS.items():
            if place.is_rehearsal and name == IN_PIECES:
                continue  # there are graphs on GPUs alone
            texts, figures = with_engine(family, place, way, _say)
            yield Finding(f"{family}, {name}", figures, _fault(name, figures, texts == expected))


def _say(engine: Engine) -> _Said:
    texts = texts_of(engine, prompts(NUM_SEQS, MAX_LEN - NUM_NEW), NUM_NEW)
    stats = engine.stats
    figures = {
        "preemptions": stats.num_preemptions,
        "swaps": stats.num_swaps,
        "in_pieces": stats.num_steps_piecewise,
    }
    return _Said(texts, figures)


def _fault(way: str, figures: dict[str, int], is_same: bool) -> str | None:
    if not is_same:
        return "the text differs from that of steps one after the other with room for all"
    if "swapped" in way and not figures["swaps"]:
        return "nothing was swapped, so that nothing was shown"
    if "recomputed" in way and not figures["preemptions"]:
        return "nothing was preempted, so that nothing was shown"
    if way == IN_PIECES and not figures["in_pieces"]:
        return "no step was in pieces, so that nothing was shown"
    return None


def check_waits(place: Place) -> Iterator[Finding]:
    """No decode step asks the device for a number, but for the tokens of the step before."""
    scheduling = replace(AT_ONCE, async_scheduling=True, max_num_batched_tokens=None)
    for family in FAMILIES[:1] if place.is_rehearsal else FAMILIES:
        watch = partial(_watch, family, place.device)
        yield with_engine(family, place, Way(ROOMY, scheduling), watch)


def _watch(family: str, device: torch.device, engine: Engine) -> Finding:
    """Return what decode steps ask the device."""
    submit(engine, prompts(NUM_SEQS, 8), NUM_WATCHED + 20)
    for _ in range(10):
        engine.step()
    num_watched, fault = 0, None
    try:
        with _refusing_waits(device):
            for _ in range(NUM_WATCHED):
                num_watched += engine.step().num_tokens == NUM_SEQS
    except RuntimeError as error:
        fault = f"a step waits: {error}"
    if fault is None and num_watched < NUM_WATCHED:
        fault = "not every step decoded all requests"
    return Finding(f"{family}, decode steps", {"steps": num_watched}, fault)


def _refusing_waits(device: torch.device) -> AbstractContextManager[object]:
    return _sync_debug() if device.type == "cuda" else Waits(only_numbers=True)


@contextmanager
def _sync_debug() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
