"""Finds the tiles that attention kernels would best have on this GPU, where nobody waits: what
is taken is a rule in `models/attention/triton/tiles.py`, to be changed by what this prints.

    python -m bench.gpu_tiles [--widths 128] [--kv-cache-dtype auto,fp8_e4m3]

For decode and prefill of layers of 32 query and 8 K/V heads: what is taken, and the five best of
some dozens that compile and fit, with their time over its own. Each is compiled, in about a second.
`TRITON_INTERPRET=1 ... --device cpu` shows that it runs.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from triton.runtime.errors import OutOfResources, PTXASError

from bench.cpu_attention import Case, Shape, build_layers, build_step, build_store
from bench.gpu import seconds
from quire.models.attention.triton.backend import TritonAttention
from quire.models.attention.triton.launch import Form
from quire.models.attention.triton.support import describe, is_interpreted
from quire.models.attention.triton.tiles import Tile
from quire.models.config import KVCacheDtype

NUM_LAYERS = 2
NUM_TOLD = 5


class Trial(NamedTuple):
    """Requests with contexts of `length`, of which the last `num_new` tokens are computed."""

    num_seqs: int
    length: int
    num_new: int
    tiles: Sequence[Tile]


def tiles_of(*sizes: Sequence[int]) -> list[Tile]:
    """Return the tiles of all these rows, keys, numbers of warps and of stages."""
    return [Tile(*each) for each in product(*sizes)]


TRIALS = {
    "cuda": (
        Trial(64, 4096, 1, tiles_of((16,), (16, 32, 64, 128), (4, 8), (2, 3, 5))),
        Trial(1, 8192, 8192, tiles_of((32, 64, 128), (32, 64, 128), (4, 8), (3, 5))),
    ),
    "cpu": (Trial(1, 32, 1, tiles_of((16,), (32,), (1,), (1,))),),
}


@torch.inference_mode()
def try_all(trial: Trial, width: int, kept_as: KVCacheDtype, device: torch.device) -> None:
    case = Case(*trial[:3], Shape(32, 8, width))
    layers = build_layers(case.shape, NUM_LAYERS)
    store = build_store(case, layers, device, kept_as)
    here = describe(device)
    form = Form(layers[0], case.shape.num_heads, store.codec, store.block_size, here)
    taken = form.tile(case.num_new)

    def time_of(tile: Tile) -> float | None:
        step = build_step(TritonAttention(store, here._replace(tile=tile)), case, layers, device)
        try:
            return seconds(step, device) / NUM_LAYERS
        except (OutOfResources, PTXASError):
            return None

    times = {tile: time_of(tile) for tile in dict.fromkeys([taken, *trial.tiles])}
    own_s = times[taken]
    assert own_s is not None, "the tile that is taken fits everywhere"
    found = sorted((time_s, tile) for tile, time_s in times.items() if time_s is not None)
    print(f"{case.name}, {kept_as}: taken {_text(taken)}, {1e3 * own_s:.3f} ms a layer")
    for time_s, tile in found[:NUM_TOLD]:
        print(f"  {_text(tile):40} {time_s / own_s:.2f}", flush=True)


def _text(tile: tuple[int, int, int, int]) -> str:
    return "{} rows, {} keys, {} warps, {} stages".format(*tile)


def main() -> None:
    """Try and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", choices=TRIALS)
    parser.add_argument("--widths", default="128")
    parser.add_argument("--kv-cache-dtype", default="auto,fp8_e4m3")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here: TRITON_INTERPRET=1 and --device cpu show that it runs")
    if device.type == "cpu" and not is_interpreted():
        parser.error("--device cpu wants TRITON_INTERPRET=1")
    for width, trial in product(options.widths.split(","), TRIALS[options.device]):
        for kept_as in map(KVCacheDtype, options.kv_cache_dtype.split(",")):
            try_all(trial, int(width), kept_as, device)


if __name__ == "__main__":
    main()
