"""The sampling kernel against torch's operations on the same device: the same tokens of the same
logits, parameters and random numbers, to the last one."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from tests.engine.sampling.sampler_cases import MIXED, row_of
from torch import Tensor

from bench.gpu.check import Finding, Place
from quire.engine.sampling.build_sampler import fused_sampler
from quire.engine.sampling.torch_sampler import TorchSampler
from quire.scheduler.request import Sampling

SAMPLINGS = (
    *MIXED,
    Sampling(temperature=1e-6, top_p=0.9),
    Sampling(top_k=300, top_p=0.99, min_p=1e-4),
    Sampling(logit_bias=((7, 50.0),), top_p=0.9),
)
SIZES = ((256, 128_256), (64, 32_000), (40, 151_936))
"""Rows and vocabularies."""
REHEARSED = ((len(SAMPLINGS), 200),)
STEP = 0.125
"""Logits that are rounded to multiples of it have many ties."""


@torch.inference_mode()
def check_sampling(place: Place) -> Iterator[Finding]:
    """Peaked, flat and tied logits, some banned, in both dtypes that a model has them in."""
    for num_rows, vocab_size in REHEARSED if place.is_rehearsal else SIZES:
        plain = TorchSampler(vocab_size, place.device)
        fused = fused_sampler(vocab_size, place.device)
        for name, logits in _kinds(num_rows, vocab_size, place):
            rows = [
                row_of(replace(SAMPLINGS[index % len(SAMPLINGS)], seed=index), [index % 32, 1])
                for index in range(num_rows)
            ]
            wanted, found = (
                sampler.sample(logits, [row.state() for row in rows]).result()
                for sampler in (plain, fused)
            )
            pairs = zip(wanted.token_ids, found.token_ids, strict=True)
            num_other = sum(token_id != other for token_id, other in pairs)
            fault = f"{num_other} rows sample another token" if num_other else None
            what = f"{name}, {num_rows} x {vocab_size}, {logits.dtype}"
            yield Finding(what, {"rows": num_rows, "other": num_other}, fault)


def _kinds(num_rows: int, vocab_size: int, place: Place) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    made = torch.randn(num_rows, vocab_size, generator=generator).to(place.device)
    banned = torch.rand(num_rows, vocab_size, generator=generator).to(place.device) < 0.5
    yield "peaked", made * 4
    if not place.is_rehearsal:
        yield "peaked", (made * 4).bfloat16()
        yield "flat", made / 16
    yield "tied, half banned", ((made / STEP).round() * STEP).masked_fill(banned, -torch.inf)
