"""What the memory receipt counts for the sampler holds all that it allocates."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quire.engine.sampling.build_sampler import sampler_bytes
from quire.engine.sampling.tiles import working_bytes
from quire.engine.sampling.torch_sampler import TorchSampler
from quire.models.native import library
from quire.scheduler.request import Sampling
from tests.allocation import peak_bytes
from tests.engine.sampling.sampler_cases import CPU, MIXED, row_of

WHOLE_VOCABULARY = 1 << 20
SMALL_BYTES = 1 << 20
"""Ids, scores and what a row asks."""


@pytest.mark.parametrize("vocab_size", [300, 32_000])
@pytest.mark.parametrize(
    "sampling", [*MIXED, Sampling(top_k=WHOLE_VOCABULARY), Sampling(top_k=100, num_logprobs=20)]
)
def test_sampling_takes_no_more_than_is_counted(
    sampling: Sampling, vocab_size: int, tmp_path: Path
) -> None:
    logits = torch.randn(200, vocab_size, dtype=torch.bfloat16)
    rows = [row_of(replace(sampling, seed=place), [place]) for place in range(len(logits))]
    states = [row.state() for row in rows]

    def sample() -> None:
        TorchSampler(vocab_size, CPU).sample(logits, states).result()

    taken = peak_bytes(sample, tmp_path / "memory.json")
    assert taken <= working_bytes(vocab_size, CPU) + SMALL_BYTES


def test_every_device_has_a_sampler_that_is_counted() -> None:
    assert sampler_bytes(32_000, torch.device("cuda")) == working_bytes(
        32_000, torch.device("cuda")
    )
    if library() is not None:
        assert 0 < sampler_bytes(32_000, CPU) < working_bytes(32_000, CPU)
