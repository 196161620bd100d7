"""Measure read bandwidth and bf16 matrix products on all cores, in this process.

    python -m bench.roofline

prints the JSON of bench.ceilings.Ceilings.
"""

import time
from collections.abc import Callable

import msgspec
import torch

from bench.ceilings import Ceilings

NUM_READ_FLOATS = 2**29
NUM_REPEATS = 5
MATMUL_WIDTHS = (1024, 2048, 4096)


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


def _bf16_gflop_s(width: int) -> float:
    square = torch.ones(width, width, dtype=torch.bfloat16)
    return 2 * width**3 / _best_s(lambda: square @ square) / 1e9


def main() -> None:
    """Measure and print."""
    measured = Ceilings(
        read_gb_s=_read_gb_s(),
        bf16_gflop_s=max(_bf16_gflop_s(width) for width in MATMUL_WIDTHS),
    )
    print(msgspec.json.encode(measured).decode())


if __name__ == "__main__":
    main()
