"""A draw never waits for its device. Shown on `meta`, where tensors have shapes and no values: an
operation that needs one, to know a shape or to tell the host, raises. `cuda` draws by the same code
but for how copies are made.
"""

import torch
from hypothesis import given
from torch import Tensor

from quire.engine.sampling.sampling_state import SamplingState
from quire.engine.sampling.torch_sampler import TorchSampler
from tests.crossings import META, Crossings
from tests.engine.sampler_cases import MIXED, batches, row_of


def draw_without_values(logits: Tensor, rows: list[SamplingState]) -> None:
    sampler = TorchSampler(logits.shape[1], META)
    logits = logits.to(META)
    with Crossings() as crossings:
        drawn = sampler.sample(logits, rows)
    assert crossings.num == 1
    assert drawn.token_ids.is_meta
    assert drawn.token_ids.dtype is torch.int64
    assert drawn.token_ids.shape == (len(rows),)


@given(batches())
def test_a_draw_asks_its_device_nothing(batch: tuple[Tensor, list[SamplingState]]) -> None:
    draw_without_values(*batch)


def test_draws_of_several_slabs_ask_their_device_nothing() -> None:
    rows = [row_of(MIXED[place % len(MIXED)], [place, 0, place]) for place in range(300)]
    draw_without_values(torch.empty(300, 151_936, device=META, dtype=torch.bfloat16), rows)
