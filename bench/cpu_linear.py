"""Bfloat16 linear layers on the CPU: torch's, oneDNN's over weights it reordered, and ours, over
bfloat16 weights and over int8 ones.

    python -m bench.cpu_linear [--rows 1,8,32] [--rounds 7]

takes the shapes of Qwen2.5-0.5B. In each round every way runs in turn over as many weights as no
cache holds, and so do a plain read and a square product, for the shares in brackets: of the read
bandwidth up to 8 rows, of the bfloat16 product's speed beyond. All figures are medians over single
calls.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import linear

from quire.models.native import library
from quire.models.native.linear.compressed_bf16 import CompressedBf16Kernel, bind_compressed_bf16
from quire.models.native.linear.quantised.w8a8 import W8A8Kernel, bind_w8a8
from quire.models.native.packed_weight import PackedWeight

SHAPES = {
    "q, o": (896, 896),
    "k, v": (128, 896),
    "q, k and v at once": (1152, 896),
    "gate, up": (4864, 896),
    "gate and up at once": (9728, 896),
    "down": (896, 4864),
    "head": (151936, 896),
}
"""Rows and columns of W."""
ROWS = (1, 8, 32, 128, 512)
MOST_ROWS_BY_BANDWIDTH = 8
COLD_BYTES = 2**27
READ_FLOATS = 2**27
READ_PIECE_FLOATS = 2**22
SQUARE = 640
NUM_SQUARES = 32
PACK_HINT_ROWS = 16
OURS, INT8 = "ours", "int8"
WEIGHT_BYTES = {OURS: 1.51, INT8: 1.0}
"""The bytes read for each number; other ways read two."""
NO_MORE: tuple[None, str, list[float], str] = (None, "none", [], "")
"""oneDNN's bias, and what it would do to the product."""

Act = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Way:
    """`acts` do the same over one cold weight after the other."""

    name: str
    acts: tuple[Act, ...]

    def times_s(self) -> list[float]:
        """Return the seconds of each act."""
        times_s = []
        for act in self.acts:
            start_s = time.perf_counter()
            act()
            times_s.append(time.perf_counter() - start_s)
        return times_s


@dataclass(frozen=True, slots=True)
class Kernels:
    bfloat16: CompressedBf16Kernel
    int8: W8A8Kernel


@dataclass(frozen=True, slots=True)
class Weights:
    """The same weights in each form."""

    plain: tuple[Tensor, ...]
    reordered: tuple[Tensor, ...]
    packed: tuple[PackedWeight, ...]
    quantised: tuple[PackedWeight, ...]

    def ways(self, x: Tensor, kernels: Kernels) -> tuple[Way, ...]:
        onednn = torch.ops.mkldnn._linear_pointwise
        return (
            Way("torch", tuple(partial(linear, x, w) for w in self.plain)),
            Way("oneDNN", tuple(partial(onednn, x, w, *NO_MORE) for w in self.reordered)),
            Way(OURS, tuple(partial(kernels.bfloat16.linear, x, w, None) for w in self.packed)),
            Way(INT8, tuple(partial(kernels.int8.linear, x, w, None) for w in self.quantised)),
        )


def build_weights(shape: tuple[int, int], kernels: Kernels) -> Weights:
    num_copies = max(COLD_BYTES // (2 * shape[0] * shape[1]), 1)
    plain = tuple(torch.randn(shape, dtype=torch.bfloat16) for _ in range(num_copies))
    reorder = torch.ops.mkldnn._reorder_linear_weight
    return Weights(
        plain,
        tuple(reorder(w, PACK_HINT_ROWS) for w in plain),
        tuple(kernels.bfloat16.pack(w) for w in plain),
        tuple(kernels.int8.pack(w) for w in plain),
    )


def medians_s(ways: Sequence[Way], num_rounds: int) -> dict[str, float]:
    """Return the median seconds of each way, all its acts together; the ways take turns."""
    for way in ways:
        way.times_s()
    rounds = [[way.times_s() for way in ways] for _ in range(num_rounds)]
    return {
        way.name: median(chain.from_iterable(times))
        for way, *times in zip(ways, *rounds, strict=True)
    }


def line(name: str, shape: tuple[int, int], num_rows: int, times_s: dict[str, float]) -> str:
    """One row of the table."""
    num_operations = 2 * num_rows * shape[0] * shape[1]
    read_bytes_s = 4 * READ_PIECE_FLOATS / times_s.pop("read")
    square_operations_s = 2 * SQUARE**3 / times_s.pop("square")
    cells = []
    for way, time_s in times_s.items():
        num_bytes = shape[0] * shape[1] * WEIGHT_BYTES.get(way, 2)
        if num_rows <= MOST_ROWS_BY_BANDWIDTH:
            speed, share = f"{num_bytes / time_s / 1e9:.1f} GB/s", num_bytes / time_s / read_bytes_s
        else:
            speed = f"{num_operations / time_s / 1e9:.0f} GFLOP/s"
            share = num_operations / time_s / square_operations_s
        cells.append(f"{time_s * 1e3:.3f} ms, {speed} ({share:.0%})")
    ceilings = f"{read_bytes_s / 1e9:.1f} GB/s, {square_operations_s / 1e9:.0f} GFLOP/s"
    return f"| {name} | {num_rows} | {' | '.join(cells)} | {ceilings} |"


def compare(rows: Sequence[int], num_rounds: int, kernels: Kernels) -> None:
    """Print the table as it is measured."""
    floats = torch.ones(READ_FLOATS)
    starts = range(0, READ_FLOATS, READ_PIECE_FLOATS)
    pieces = [floats[start : start + READ_PIECE_FLOATS] for start in starts]
    square = torch.ones(SQUARE, SQUARE, dtype=torch.bfloat16)
    ceilings = (
        Way("read", tuple(piece.sum for piece in pieces)),
        Way("square", (lambda: square @ square,) * NUM_SQUARES),
    )
    print("| layer | rows | torch | oneDNN, reordered | ours | ours, int8 | read, product |")
    print("|---|---|---|---|---|---|---|")
    for name, shape in SHAPES.items():
        weights = build_weights(shape, kernels)
        for num_rows in rows:
            x = torch.randn(num_rows, shape[1], dtype=torch.bfloat16)
            times_s = medians_s((*weights.ways(x, kernels), *ceilings), num_rounds)
            print(line(name, shape, num_rows, times_s), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_linear")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="of x, such as 1,8")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    built = library()
    plain = None if built is None else bind_compressed_bf16(built)
    int8 = None if built is None else bind_w8a8(built)
    if plain is None or int8 is None:
        parser.error("the C++ linear kernels are not here, or this CPU lacks their dot products")
    with torch.inference_mode():
        compare([int(each) for each in args.rows.split(",")], args.rounds, Kernels(plain, int8))


if __name__ == "__main__":
    main()
