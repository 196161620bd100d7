"""First tokens of prompts of one step, with steps launched operation by operation and in captured
pieces: what the pieces save of the time that the host takes to launch a step."""

import gc
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.gpu.check import Finding, Place
from bench.gpu.speed.decoding import (
    LOAD,
    REHEARSED_LOAD,
    Load,
    build_engine,
    first_token_s,
    prompts_of,
)
from bench.gpu.speed.llama import SIZES, make_checkpoint
from bench.gpu.speed.timing import Timing
from quire.models.config import CUDAGraphMode

LENGTHS, REHEARSED_LENGTHS = (32, 64, 256, 512, 1024, 2000), (8,)
NUM_RUNS, REHEARSED_RUNS = 20, 2
MODES = (CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.FULL_AND_PIECEWISE)


def check_pieces(place: Place) -> Iterator[Finding]:
    """Time prompts of a 1B model both ways. A speed is never wrong."""
    name, load = ("tiny", REHEARSED_LOAD) if place.is_rehearsal else ("1b", LOAD)
    make_checkpoint(place.folder / name, SIZES[name], place.device)
    one_by_one = load._replace(batches=(1,))
    launched, in_pieces = (
        _timings(place.folder / name, place, one_by_one, mode, SIZES[name].vocab) for mode in MODES
    )
    for length, timing in launched.items():
        pieces = in_pieces[length]
        figures = {
            "launched_ms": 1e3 * timing.median_s,
            "pieces_ms": 1e3 * pieces.median_s,
            "times_faster": timing.median_s / pieces.median_s,
        }
        yield Finding(f"{name}, first token of a prompt of {length}", figures)


def _timings(
    folder: Path, place: Place, load: Load, mode: CUDAGraphMode, vocab: int
) -> dict[int, Timing]:
    """Return the times to the first token, by tokens of the prompt."""
    gc.collect()
    if place.device.type == "cuda":
        torch.cuda.empty_cache()
    engine = build_engine(folder, place.device, load, mode=mode)
    num_runs = REHEARSED_RUNS if place.is_rehearsal else NUM_RUNS
    timings = {}
    for length in REHEARSED_LENGTHS if place.is_rehearsal else LENGTHS:
        prompts = prompts_of(num_runs + 1, length, vocab, seed=length)
        taken_s = [first_token_s(engine, prompt) for prompt in prompts]
        timings[length] = Timing.of(taken_s[1:])  # the first one warms up
    engine.close()
    return timings
