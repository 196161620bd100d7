"""Measure read bandwidth and bf16 matrix products on all cores, in this process.

    python -m bench.roofline

prints the JSON of bench.ceilings.Ceilings.
"""

import time
from collections.abc import Callable
from functools import partial

import msgspec
import torch

from bench.ceilings import Ceilings

NUM_READ_FLOATS = 2**29
NUM_REPEATS = 5
MATMUL_WIDTHS = (1024, 2048, 4096)
LONG_S = 1.0
"""A CPU that takes so long for a product computes bfloat16 one number at a time: wider ones, which
tell no more, would take minutes."""


def _best_s(act: Callable[[], torch.Tensor]) -> float:
    times_s = []
    for _ in range(NUM_REPEATS):
        start_s = time.perf_counter()
        act()
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)


def _read_gb_s() -> float:
    floats = torch.ones(NUM_READ_FLOATS, dtype=torch.float32)
    reads: tuple[Callable[[], torch.Tensor], ...] = (
        floats.sum,
        floats.max,
        lambda: torch.dot(floats, floats),
    )
    return 4 * NUM_READ_FLOATS / min(_best_s(read) for read in reads) / 1e9


def _bf16_gflop_s() -> float:
    best = 0.0
    for width in MATMUL_WIDTHS:
        square = torch.ones(width, width, dtype=torch.bfloat16)
        took_s = _best_s(partial(torch.matmul, square, square))
        best = max(best, 2 * width**3 / took_s / 1e9)
        if took_s > LONG_S:
            break
    return best


def main() -> None:
    """Measure and print."""
    measured = Ceilings(
        read_gb_s=_read_gb_s(),
        bf16_gflop_s=_bf16_gflop_s(),
    )
    print(msgspec.json.encode(measured).decode())


if __name__ == "__main__":
    main()
