"""A whole engine on the device: the same text however its steps are taken, no step that waits for
the device, and no more memory than its receipt says."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from tests.models.tape import Waits

from bench.gpu.check import Finding, Place
from bench.gpu.correctness.small_models import BLOCK_SIZE, MAX_LEN, build, prompts, submit, texts_of
from quire.engine.config import MemoryConfig, SchedulingConfig
from quire.models.config import CUDAGraphMode
from quire.scheduler.cost import PreemptionMode

FAMILIES = ("llama", "gemma2", "gpt_oss", "deepseek_v3")
NUM_SEQS, NUM_NEW, NUM_WATCHED = 16, 16, 50
ROOMY = MemoryConfig(block_size=BLOCK_SIZE)
TIGHT = MemoryConfig(block_size=BLOCK_SIZE, kv_cache_tokens=3 * MAX_LEN, swap_space=0.1)
AT_ONCE = SchedulingConfig(
    max_model_len=MAX_LEN, max_num_seqs=NUM_SEQS, max_num_batched_tokens=40, async_scheduling=False
)
IN_PIECES = "swapped, overlapped, in pieces"


class Way(NamedTuple):
    """A way in which steps are taken and launched."""

    memory: MemoryConfig
    scheduling: SchedulingConfig
    mode: CUDAGraphMode = CUDAGraphMode.FULL_DECODE_ONLY


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


def check_texts(place: Place) -> Iterator[Finding]:
    """Text does not depend on overlap, on preemption, on swapping, or on steps in pieces."""
    asked = prompts(NUM_SEQS, MAX_LEN - NUM_NEW)
    for family in FAMILIES[:2] if place.is_rehearsal else FAMILIES:
        expected = texts_of(build(family, place, ROOMY, AT_ONCE), asked, NUM_NEW)
        for way, settings in WAYS.items():
            if place.is_rehearsal and way == IN_PIECES:
                continue  # there are graphs on GPUs alone
            engine = build(family, place, *settings)
            said = texts_of(engine, asked, NUM_NEW)
            stats = engine.stats
            figures = {
                "preemptions": stats.num_preemptions,
                "swaps": stats.num_swaps,
                "in_pieces": stats.num_steps_piecewise,
            }
            yield Finding(f"{family}, {way}", figures, _fault(way, figures, said == expected))


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
        engine = build(family, place, ROOMY, scheduling)
        submit(engine, prompts(NUM_SEQS, 8), NUM_WATCHED + 20)
        for _ in range(10):
            engine.step()
        num_watched, fault = 0, None
        try:
            with _refusing_waits(place.device):
                for _ in range(NUM_WATCHED):
                    num_watched += engine.step().num_tokens == NUM_SEQS
        except RuntimeError as error:
            fault = f"a step waits: {error}"
        if fault is None and num_watched < NUM_WATCHED:
            fault = "not every step decoded all requests"
        yield Finding(f"{family}, decode steps", {"steps": num_watched}, fault)


def _refusing_waits(device: torch.device) -> AbstractContextManager[object]:
    return _sync_debug() if device.type == "cuda" else Waits(only_numbers=True)


@contextmanager
def _sync_debug() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
