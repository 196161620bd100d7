"""Triton's sampling kernel, in its interpreter, keeps and samples what torch's operations do.

Its exponentials are NumPy's here, which differ from torch's in the last bit. None of these tokens
hangs on one.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.engine.sampling.sampling_plan import build_plan
from quire.engine.sampling.slab_sampler import SlabSampler
from quire.engine.sampling.tiles import SamplingWorkspace
from quire.engine.sampling.torch_sampler import RowsSampler, TorchSampler
from quire.scheduler.request import Sampling
from tests.engine.sampling.sampler_cases import (
    CPU,
    MIXED,
    Case,
    batches,
    expected,
    logits_of,
    row_of,
    sample_all,
)
from tests.profiles import cases

pytest.importorskip("triton", reason="triton is not installed")
from quire.engine.sampling.triton.fused_sampler import FusedSampler

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
NOISES = torch.tensor([1 - 2**-53, 0.0, 0.6], dtype=torch.float64)
"""The last and the first of the kept tokens, and one between."""
LONG_VOCAB = 9_500
"""More than one list of tokens holds, so that a search reads a row several times."""
INFINITE = torch.inf


def by_torch(vocab_size: int) -> TorchSampler:
    return TorchSampler(vocab_size, CPU)


def fused(vocab_size: int) -> TorchSampler:
    return TorchSampler(vocab_size, CPU, FusedSampler(vocab_size, CPU))


def sampled_at_noises(sampler: RowsSampler, logits: Tensor, sampling: Sampling) -> list[int]:
    """Return what one row of logits samples at each of NOISES."""
    states = [row_of(sampling, [0]).state()] * len(NOISES)
    plan = build_plan(states, len(logits), len(NOISES))
    on_device = plan.on_device(plan.tensors())
    on_device.params[:, 0] = NOISES
    token_ids, is_finite = sampler.sample(logits.expand(len(NOISES), -1), plan, on_device)
    assert is_finite.all()
    sampled: list[int] = token_ids.tolist()
    return sampled


def assert_same_tokens(logits: Tensor, *samplings: Sampling) -> None:
    vocab_size = len(logits)
    slabs = SlabSampler(SamplingWorkspace(vocab_size, CPU))
    for sampling in samplings:
        wanted = sampled_at_noises(slabs, logits, sampling)
        found = sampled_at_noises(FusedSampler(vocab_size, CPU), logits, sampling)
        assert found == wanted, sampling


@cases(6)
@given(batches())
def test_the_same_tokens_are_sampled_of_any_batch(batch: tuple[Tensor, list[Case]]) -> None:
    logits, rows = batch
    wanted = sample_all(by_torch, logits, rows)
    assert sample_all(fused, logits, rows) == wanted


@cases(6)
@given(st.data())
def test_the_same_tokens_are_kept(data: st.DataObject) -> None:
    vocab_size = data.draw(st.sampled_from((1, 33, 129, 300)))
    sampling = Sampling(
        temperature=data.draw(st.sampled_from((1e-6, 0.5, 1.0, 3.0, 1e6))),
        top_k=data.draw(st.sampled_from((0, 1, 5, 100))),
        top_p=data.draw(st.sampled_from((1.0, 0.9, 0.5, 0.1, 1e-9, 1 - 2**-53))),
        min_p=data.draw(st.sampled_from((0.0, 0.0, 0.01, 0.3))),
    )
    assert_same_tokens(data.draw(logits_of(vocab_size, 1))[0], sampling)


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(200),
        torch.zeros(200).index_fill(0, torch.tensor([77]), 30.0),
        torch.full((200,), -INFINITE).index_fill(0, torch.tensor([3, 150]), -5.0),
        torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1e-20]).repeat(19),
        torch.tensor([3e38, -3e38, 3.4e38, 1.0, -INFINITE]).repeat(30),
    ],
    ids=["uniform", "one-hot", "masked", "about-zero", "largest-floats"],
)
def test_odd_rows_keep_the_same_tokens(logits: Tensor) -> None:
    assert_same_tokens(
        logits,
        Sampling(),
        Sampling(top_p=0.6),
        Sampling(top_k=7, top_p=0.9, temperature=2.0),
        Sampling(min_p=0.1, top_p=0.5),
    )


@pytest.mark.parametrize("step", [0.0, 0.25], ids=["as-drawn", "with-ties"])
def test_a_row_that_is_read_several_times_keeps_the_same_tokens(step: float) -> None:
    logits = torch.randn(LONG_VOCAB, generator=torch.Generator().manual_seed(1))
    if step:
        logits = (logits / step).round() * step
    assert_same_tokens(logits, Sampling(top_k=5000, top_p=0.9))


def test_every_kind_samples_as_the_naive_sampler() -> None:
    logits = torch.randn(len(MIXED), 1500, generator=torch.Generator().manual_seed(2)) * 3
    rows = [row_of(replace(each, seed=index), [index, 1]) for index, each in enumerate(MIXED)]
    found = sample_all(fused, logits.bfloat16().float(), rows).token_ids
    wanted = [expected(logits[i].bfloat16().float(), row) for i, row in enumerate(rows)]
    assert sum(token_id is not None for token_id in wanted) > len(MIXED) // 2
    for token_id, each in zip(wanted, found, strict=True):
        assert token_id is None or token_id == each


@pytest.mark.parametrize("broken", [math.nan, INFINITE])
def test_rows_that_are_not_finite_are_told(broken: float) -> None:
    logits = torch.zeros(3, 40)
    logits[1, 17] = broken
    logits[2] = -INFINITE
    for sampling in (Sampling(temperature=0.0), Sampling(top_p=0.5)):
        out = sample_all(fused, logits, [row_of(sampling, [0])] * 3)
        assert out.not_finite == [False, True, True]
        assert out.token_ids[1:] == [0, 0]


def test_rows_of_a_wider_tensor_are_sampled_where_they_lie() -> None:
    wide = torch.randn(4, 100, generator=torch.Generator().manual_seed(3))
    rows = [row_of(Sampling(top_p=0.8, seed=index), [0]) for index in range(4)]
    whole = sample_all(by_torch, wide[:, :60].contiguous(), rows).token_ids
    assert sample_all(fused, wide[:, :60], rows).token_ids == whole
