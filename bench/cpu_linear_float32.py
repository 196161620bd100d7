"""Float32 linear layers on the CPU over weights whose numbers are bfloat16 ones: torch's, over four
bytes a weight, and ours over two, or over one and rounded, or over four bits with a scale for each
32 of them, by each instruction set that runs here.

    python -m bench.cpu_linear_float32 [--rows 1,8,32] [--rounds 5]

Shapes are those of Qwen2.5-0.5B. The ways take turns, each over as many weights as no cache holds;
medians over single calls. In brackets how many times as fast as torch's.
"""

import argparse
from collections.abc import Sequence
from functools import partial

import torch
from torch.nn.functional import linear

from bench.cpu_linear import SHAPES, Way, medians_s
from quire.models.native import library
from quire.models.native.linear.bf16_storage import bind_bf16_storage
from quire.models.native.linear.quantised.grouping import bind_grouping
from quire.models.native.linear.quantised.w8a32 import bind_w8a32
from quire.models.weights.weight_kernel import WeightKernel

ROWS = (1, 4, 8, 16, 32, 128, 512)
NAMES = ("q, o", "gate, up", "down", "head")
COLD_BYTES = 2**27
TORCH = "torch"


def ways(
    shape: tuple[int, int], num_rows: int, kernels: dict[str, WeightKernel]
) -> tuple[Way, ...]:
    num_copies = max(COLD_BYTES // (2 * shape[0] * shape[1]), 1)
    plain = [torch.randn(shape).bfloat16().float() for _ in range(num_copies)]
    packed = {name: [kernel.pack(weight) for weight in plain] for name, kernel in kernels.items()}
    x = torch.randn(num_rows, shape[1])
    return (
        Way(TORCH, tuple(partial(linear, x, weight) for weight in plain)),
        *(
            Way(name, tuple(partial(kernel.linear, x, weight, None) for weight in packed[name]))
            for name, kernel in kernels.items()
        ),
    )


def compare(rows: Sequence[int], num_rounds: int, kernels: dict[str, WeightKernel]) -> None:
    """Print the table as it is measured."""
    names = [TORCH, *kernels]
    print(f"| layer | rows | {' | '.join(names)} |\n|{'---|' * (2 + len(names))}")
    for name in NAMES:
        for num_rows in rows:
            times_s = medians_s(ways(SHAPES[name], num_rows, kernels), num_rounds)
            cells = [
                f"{1e3 * times_s[each]:.3f} ms ({times_s[TORCH] / times_s[each]:.2f})"
                for each in names
            ]
            print(f"| {name} | {num_rows} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_linear_float32")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="of x, such as 1,8")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    built = library()
    if built is None:
        parser.error("the C++ kernels were not built")
    kernels: dict[str, WeightKernel] = {}
    for isa in built.isas:
        lent = built.of(isa)
        kernels |= {
            f"{isa} halves": bind_bf16_storage(lent),
            f"{isa} bytes": bind_w8a32(lent),
            f"{isa} nibbles": bind_grouping(lent, 4),
        }
    with torch.inference_mode():
        compare([int(each) for each in args.rows.split(",")], args.rounds, kernels)


if __name__ == "__main__":
    main()
