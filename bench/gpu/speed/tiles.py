"""Other tiles for the attention kernels than the rule's (`models/attention/triton/tiles.py`), which
is to be changed by what this finds: while requests wait nothing is tuned."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from random import Random
from typing import NamedTuple

import torch
from triton.errors import TritonError

from bench.gpu.check import Figure, Finding, Place
from bench.gpu.speed.attention import REHEARSED as REHEARSED_CASES
from bench.gpu.speed.attention_case import AttentionCase, build_calls, build_layers_for, build_store
from bench.gpu.speed.timing import Call, time_captured
from quire.models.attention.triton.backend import TritonAttention
from quire.models.attention.triton.launch import AttentionLayer
from quire.models.attention.triton.support import describe
from quire.models.attention.triton.tiles import TileShape
from quire.models.config import KVCacheDtype

TRIAL_S = 12.0
"""A trial takes no more new tiles after so long."""
COMPILE_S = 15.0
"""A tile that compiles longer is not waited for."""
NUM_COMPILERS = 8
NUM_TOLD = 3


class Trial(NamedTuple):
    """A case of attention, and the tiles to try on it."""

    case: AttentionCase
    tiles: Sequence[TileShape]


def tiles_of(*sizes: Sequence[int]) -> list[TileShape]:
    """Return the tiles of all these rows, keys, numbers of warps and of stages, in an order by
    chance, so that those that come first stand for all."""
    tiles = [TileShape(*each) for each in product(*sizes)]
    Random(0).shuffle(tiles)
    return tiles


DECODE_TILES = tiles_of((16,), (16, 32, 64, 128), (2, 4, 8), (2, 3, 5))
PREFILL_TILES = tiles_of((32, 64, 128), (32, 64, 128), (4, 8), (2, 3, 5))
FP8 = KVCacheDtype.FP8_E4M3
TRIALS = (
    Trial(AttentionCase("decode 64 x 4k", ((4096, 1),) * 64), DECODE_TILES),
    Trial(AttentionCase("prefill 8k", ((8192, 8192),)), PREFILL_TILES),
    Trial(AttentionCase("decode 64 x 4k, fp8", ((4096, 1),) * 64, FP8), DECODE_TILES),
)
REHEARSED = (Trial(REHEARSED_CASES[0], (TileShape(16, 32, 1, 1),)),)


@torch.inference_mode()
def check_tiles(place: Place) -> Iterator[Finding]:
    """Try tiles out, and say how far the rule's is from the best of them."""
    for trial in REHEARSED if place.is_rehearsal else TRIALS:
        bench = _Bench(trial.case, place.device)
        rule = bench.rule_tile()
        ends_s = time.monotonic() + TRIAL_S
        times_s: dict[TileShape, float | None] = {}
        tiles = list(dict.fromkeys([rule, *trial.tiles]))
        for group in _grouped(tiles, bench.num_compilers):
            if time.monotonic() < ends_s:
                times_s |= bench.try_all(group)
        yield summarise(trial.case, rule, times_s, num_left=len(tiles) - len(times_s))


def summarise(
    case: AttentionCase, rule: TileShape, times_s: Mapping[TileShape, float | None], num_left: int
) -> Finding:
    """Return the seconds of tiles as a finding; None are those that do not fit, or that took too
    long to compile. The rule's must be among those that run."""
    found = sorted((time_s, tile) for tile, time_s in times_s.items() if time_s is not None)
    rule_s = times_s[rule]
    assert rule_s is not None, "the rule's tile fits everywhere"
    figures: dict[str, Figure] = {"rule": _text(rule), "ms": 1e3 * rule_s}
    for rank, (time_s, tile) in enumerate(found[:NUM_TOLD], start=1):
        figures |= {f"best_{rank}": _text(tile), f"best_{rank}_ms": 1e3 * time_s}
    figures |= {
        "times_best": rule_s / found[0][0],
        "num_tried": len(found),
        "num_unfit": len(times_s) - len(found),
        "num_left": num_left,
    }
    return Finding(f"tiles, {case.name}", figures)


class _Bench:
    """One case on one device, and its time with any tile."""

    def __init__(self, case: AttentionCase, device: torch.device) -> None:
        self._case = case
        self._device = device
        self._layers = build_layers_for(case, device)
        self._store = build_store(case, self._layers, device)
        self._here = describe(device)
        self.num_compilers = 1 if self._here.is_interpreted else NUM_COMPILERS

    def rule_tile(self) -> TileShape:
        """Return the tile that is taken where requests are served."""
        store, heads = self._store, self._case.shape.num_heads
        form = AttentionLayer(self._layers[0], heads, store.codec, store.block_size, self._here)
        return form.tile(max(num_new for _, num_new in self._case.chunks))

    def try_all(self, tiles: Sequence[TileShape]) -> dict[TileShape, float | None]:
        """Compile all beside each other, then time one after the other; None if one does not fit or
        compiles too long."""
        pool = ThreadPoolExecutor(self.num_compilers)
        calls = {tile: self._calls(tile) for tile in tiles}
        first = {tile: pool.submit(_first, calls[tile][0], self._device) for tile in tiles}
        are_fit = {tile: _runs(future) for tile, future in first.items()}
        pool.shutdown(wait=False, cancel_futures=True)
        return {
            tile: time_captured(self._device, calls[tile]).median_s if are_fit[tile] else None
            for tile in tiles
        }

    def _calls(self, tile: TileShape) -> list[Call]:
        backend = TritonAttention(self._store, self._here._replace(tile=tile))
        return build_calls(self._case, backend, self._layers, self._device)


def _grouped(tiles: Sequence[TileShape], size: int) -> Iterator[Sequence[TileShape]]:
    for first in range(0, len(tiles), size):
        yield tiles[first : first + size]


@torch.inference_mode()
def _first(call: Call, device: torch.device) -> None:
    """Call in a thread of its own, which has an inference mode and a CUDA context of its own."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # torch makes its context this thread's
    call()


def _runs(future: Future[None]) -> bool:
    """Return whether a tile was compiled and run in time. Passes of the compiler that fail raise
    RuntimeError."""
    try:
        future.result(COMPILE_S)
    except (TritonError, RuntimeError, TimeoutError):
        return False
    return True


def _text(tile: TileShape) -> str:
    return "{} rows, {} keys, {} warps, {} stages".format(*tile)
