"""One step's sampling on the CPU: the sampler in torch, and over the C++ kernel.

    python -m bench.sampler_cost [--rows 32,64] [--vocab 32000,151936] [--rounds 7]

Logits are those of a peaked distribution, in memory that no cache holds. In each round both
samplers take turns; prints medians in milliseconds.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from quire.engine.sampling.logits_processor import ProcessorBuilder, ProcessorContext, RowEdits
from quire.engine.sampling.native_sampler import NativeSampler
from quire.engine.sampling.processors.table import PROCESSORS
from quire.engine.sampling.sampler import Sampler
from quire.engine.sampling.sampling_state import build_sampling_state
from quire.engine.sampling.torch_sampler import TorchSampler
from quire.models.native import library
from quire.models.native.sampling.sampling import SamplingKernel, num_mask_words
from quire.scheduler.request import Sampling, Stopping

CASES = {
    "greedy": Sampling(temperature=0.0),
    "temperature 1": Sampling(),
    "temperature 0.7": Sampling(temperature=0.7),
    "top_k 50": Sampling(top_k=50),
    "top_p 0.9": Sampling(top_p=0.9),
    "top_p 0.9, temperature 3": Sampling(top_p=0.9, temperature=3.0),
    "top_k 50, top_p 0.9": Sampling(top_k=50, top_p=0.9),
    "min_p 0.05": Sampling(min_p=0.05),
    "greedy, logprobs 5": Sampling(temperature=0.0, num_logprobs=5),
    "temperature 1, logprobs 5": Sampling(num_logprobs=5),
    "greedy, penalties": Sampling(temperature=0.0, presence_penalty=0.5),
    "greedy, masked": Sampling(temperature=0.0),
    "top_p 0.9, masked": Sampling(top_p=0.9),
}
COLD_BYTES = 2**27
NUM_TOKENS = 256


@dataclass(frozen=True, slots=True)
class MaskOfHalf:
    """A logits processor that allows every other token."""

    is_done = False

    def accept(self, token_id: int) -> None:
        """Change nothing."""

    def edit(self, edits: RowEdits) -> None:
        edits.allow(torch.full((num_mask_words(edits.vocab_size),), 0x55555555, dtype=torch.int32))


def copies_of_logits(num_rows: int, vocab_size: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 2
    likely = torch.randint(vocab_size, (num_rows, 40), generator=generator)
    logits.scatter_add_(1, likely, torch.rand(num_rows, 40, generator=generator) * 12)
    logits = logits.to(dtype)
    num_copies = max(COLD_BYTES // (logits.numel() * logits.element_size()), 1)
    return [logits.clone() for _ in range(min(num_copies, 16))]


def measure(
    samplers: list[Sampler], copies: list[Tensor], name: str, num_rounds: int
) -> list[float]:
    """Return the median milliseconds of each sampler in a case of CASES."""
    num_rows, vocab_size = copies[0].shape
    sampling = CASES[name]
    builders: Sequence[ProcessorBuilder] = (
        (lambda _: MaskOfHalf(),) if name.endswith("masked") else PROCESSORS
    )
    rows = []
    for index in range(num_rows):
        token_ids = [(index * 31 + place * 7) % vocab_size for place in range(NUM_TOKENS)]
        context = ProcessorContext(sampling, Stopping(1), token_ids, NUM_TOKENS // 2)
        rows.append(build_sampling_state(context, builders))
    for sampler in samplers:
        sampler.sample(copies[0], rows)
    taken: list[list[float]] = [[] for _ in samplers]
    for number in range(num_rounds):
        for sampler, times in zip(samplers, taken, strict=True):
            logits = copies[number % len(copies)]
            began = time.perf_counter()
            sampler.sample(logits, rows).result()
            times.append(1e3 * (time.perf_counter() - began))
            copies.reverse()
    return [median(times) for times in taken]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sampler_cost")
    parser.add_argument("--rows", default="32,64")
    parser.add_argument("--vocab", default="32000,151936")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    built = library()
    if built is None:
        parser.error("the C++ kernels are not here")
    print("| rows | vocabulary | dtype | case | torch, ms | C++, ms |")
    print("|---|---|---|---|---|---|")
    for vocab_size in map(int, args.vocab.split(",")):
        samplers: list[Sampler] = [
            TorchSampler(vocab_size, torch.device("cpu")),
            NativeSampler(SamplingKernel(built, vocab_size)),
        ]
        for num_rows in map(int, args.rows.split(",")):
            for dtype in (torch.bfloat16, torch.float32):
                copies = copies_of_logits(num_rows, vocab_size, dtype)
                for name in CASES:
                    cells = measure(samplers, copies, name, args.rounds)
                    told = " | ".join(f"{cell:.2f}" for cell in cells)
                    shape = f"{num_rows} | {vocab_size} | {str(dtype).removeprefix('torch.')}"
                    print(f"| {shape} | {name} | {told} |", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
