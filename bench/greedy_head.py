"""Milliseconds of a head in greedy-only steps: the whole product, and with candidate pruning.

    python -m bench.greedy_head [--rows 1,8,32,64] [--rounds 15]

takes the shape of Qwen2.5-0.5B's. States and weights are random, so that logits are closer together
than a trained model's, and more panels are candidates. Both take turns; medians.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from quire.models.layers.greedy_head import GreedyHead
from quire.models.layers.linears import PackedForward
from quire.models.native import library
from quire.models.native.linear.candidates import bind_candidates
from quire.models.native.linear.compressed_bf16 import bind_compressed_bf16

VOCAB_SIZE, HIDDEN_SIZE = 151936, 896


def build_heads() -> tuple[PackedForward, GreedyHead] | None:
    """None: these kernels do not run here."""
    kernels = library()
    linear = None if kernels is None else bind_compressed_bf16(kernels)
    candidates = None if kernels is None else bind_candidates(kernels)
    if linear is None or candidates is None:
        return None
    weight = linear.pack(torch.randn(VOCAB_SIZE, HIDDEN_SIZE).bfloat16())
    forms = candidates.pack(weight)
    assert forms is not None
    head = PackedForward(linear, weight, None)
    return head, GreedyHead(candidates, forms, head)


def milliseconds(act: Callable[[Tensor], Tensor], states: Tensor) -> float:
    start_s = time.perf_counter()
    act(states)
    return 1e3 * (time.perf_counter() - start_s)


def measure(whole: PackedForward, greedy: GreedyHead, num_rows: int, num_rounds: int) -> str:
    states = torch.randn(1, num_rows, HIDDEN_SIZE).bfloat16()
    if not torch.equal(whole(states).argmax(-1), greedy(states).argmax(-1)):
        raise AssertionError("they do not say the same")
    rounds = [
        (milliseconds(whole, states), milliseconds(greedy, states)) for _ in range(num_rounds)
    ]
    count = greedy.kernel.find_candidates(states[0], greedy.weight).count / num_rows
    whole_ms, greedy_ms = (median(each) for each in zip(*rounds, strict=True))
    return (
        f"{num_rows:4} rows: whole {whole_ms:6.2f} ms, greedy {greedy_ms:6.2f} ms, "
        f"{whole_ms / greedy_ms:.2f} times as fast; {count:.0f} candidate panels for a row"
    )


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", default="1,8,32,64")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.manual_seed(0)
    heads = build_heads()
    if heads is None:
        parser.error("needs the C++ kernels and a CPU with AVX-512 VNNI and BF16")
    print(f"{torch.get_num_threads()} threads")
    for num_rows in map(int, options.rows.split(",")):
        print(measure(*heads, num_rows, options.rounds))


if __name__ == "__main__":
    main()
