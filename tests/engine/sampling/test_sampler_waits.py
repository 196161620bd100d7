"""Sampling never waits for its device. Shown on `meta`, where tensors have shapes and no values: an
operation that needs one, to know a shape or to tell the host, raises. `cuda` samples by the same
code but for how copies are made.
"""

import torch
from hypothesis import given
from torch import Tensor

from quire.engine.sampling.torch_sampler import TorchSampler
from quire.models.graphs.crossings import HostTransferDetector
from tests.engine.sampling.sampler_cases import MIXED, Case, batches, row_of

META = torch.device("meta")


def sample_without_values(logits: Tensor, rows: list[Case]) -> None:
    sampler = TorchSampler(logits.shape[1], META)
    logits = logits.to(META)
    states = [row.state() for row in rows]
    with HostTransferDetector(META.type) as crossings:
        sampled = sampler.sample(logits, states)
    assert len(crossings.places) == 1
    assert sampled.token_ids.is_meta
    assert sampled.token_ids.dtype is torch.int64
    assert sampled.token_ids.shape == (len(rows),)


@given(batches())
def test_sampling_reads_nothing_from_its_device(batch: tuple[Tensor, list[Case]]) -> None:
    sample_without_values(*batch)


def test_sampling_several_slabs_reads_nothing_from_its_device() -> None:
    rows = [row_of(MIXED[index % len(MIXED)], [index, 0, index]) for index in range(300)]
    sample_without_values(torch.empty(300, 151_936, device=META, dtype=torch.bfloat16), rows)
