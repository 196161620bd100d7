"""Batch invariance of the sampler: a row samples the same token alone and in any batch."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.engine.sampling.sampler import SamplerOutput
from quire.engine.sampling.torch_sampler import TorchSampler
from quire.scheduler.request import Sampling
from tests.engine.sampling.sampler_cases import (
    CPU,
    MIXED,
    Case,
    Make,
    batches,
    cases,
    expected,
    logits_of,
    row_of,
    sample_all,
)


def entries(sampled: SamplerOutput) -> list[tuple[object, ...]]:
    return list(zip(*sampled, strict=True))


def large_batch(dtype: torch.dtype) -> tuple[Tensor, list[Case]]:
    """More than a slab of rows of a large vocabulary, of every kind."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(24, 151_936, generator=generator) * 2
    logits[:, :64] += torch.rand(24, 64, generator=generator) * 12
    rows = [row_of(replace(MIXED[i % len(MIXED)], seed=i), [i, 2 * i, i]) for i in range(24)]
    return logits.to(dtype), rows


@pytest.fixture
def two_threads() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(num_threads)


@given(batches())
def test_samples_what_the_naive_sampler_samples(
    make: Make, batch: tuple[Tensor, list[Case]]
) -> None:
    logits, rows = batch
    before = logits.clone()
    sampled = sample_all(make, logits, rows)
    assert torch.equal(logits, before)
    for index, row in enumerate(rows):
        token_id = expected(logits[index], row)
        if token_id is not None and not sampled.not_finite[index]:
            assert sampled.token_ids[index] == token_id


@given(batches(), st.randoms(use_true_random=False))
def test_draws_the_same_alone_and_in_any_batch(
    make: Make, batch: tuple[Tensor, list[Case]], random: Random
) -> None:
    logits, rows = batch
    together = entries(sample_all(make, logits, rows))
    for index, row in enumerate(rows):
        assert entries(sample_all(make, logits[index : index + 1], [row])) == [together[index]]
    order = random.sample(range(len(rows)), random.randint(1, len(rows)))
    some = sample_all(make, logits[order], [rows[index] for index in order])
    assert entries(some) == [together[index] for index in order]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_vocabularies_sample_the_same_alone_and_together(
    make: Make, dtype: torch.dtype, two_threads: None
) -> None:
    logits, rows = large_batch(dtype)
    together = entries(sample_all(make, logits, rows))
    backwards = entries(sample_all(make, logits.flip(0), rows[::-1]))
    assert backwards[::-1] == together
    sampler = make(logits.shape[1])
    torch.set_num_threads(1)
    for index, row in enumerate(rows):
        alone = sampler.sample(logits[index : index + 1], [row.state()]).result()
        assert entries(alone) == [together[index]]


def test_large_vocabularies_sample_what_the_naive_sampler_samples(make: Make) -> None:
    logits, rows = large_batch(torch.float32)
    sampled = sample_all(make, logits, rows)
    wanted = [expected(logits[index], row) for index, row in enumerate(rows)]
    assert sum(token_id is not None for token_id in wanted) > 12
    for token_id, found in zip(wanted, sampled.token_ids, strict=True):
        assert token_id is None or found == token_id


def test_every_sampler_samples_alike(make: Make) -> None:
    """Where exponentials differ in their last bit, one token in millions may; none of these do."""
    logits, rows = large_batch(torch.bfloat16)
    rows += [row_of(replace(MIXED[i % len(MIXED)], seed=i), [i, 3 * i, i]) for i in range(1000)]
    logits = torch.cat((logits, logits[:8].repeat(125, 1)))[:, -9000:]
    wanted = sample_all(lambda vocab_size: TorchSampler(vocab_size, CPU), logits, rows)
    assert sample_all(make, logits, rows).token_ids == wanted.token_ids


@given(st.data())
def test_greedy_is_the_lowest_id_of_the_largest_logit(make: Make, data: st.DataObject) -> None:
    vocab_size = data.draw(st.integers(1, 700))
    logits = data.draw(logits_of(vocab_size, 5))
    rows = [row_of(Sampling(temperature=0.0), [0]) for _ in range(5)]
    assert sample_all(make, logits, rows).token_ids == logits.float().argmax(-1).tolist()


@given(st.data())
def test_a_resumed_request_samples_as_one_that_went_on(make: Make, data: st.DataObject) -> None:
    vocab_size = data.draw(st.sampled_from((32, 1000)))
    row = data.draw(cases(vocab_size))
    sampler, state = make(vocab_size), row.state()
    for logits in data.draw(logits_of(vocab_size, 4))[:, None]:
        went_on = sampler.sample(logits, [state]).result()
        resumed = replace(row, token_ids=tuple(state.token_ids)).state()
        assert entries(sampler.sample(logits, [resumed]).result()) == entries(went_on)
        state.append(went_on.token_ids[0])


@given(st.data(), batches())
def test_a_row_that_is_not_finite_is_flagged_and_harms_no_other(
    make: Make, data: st.DataObject, batch: tuple[Tensor, list[Case]]
) -> None:
    logits, rows = batch
    whole = entries(sample_all(make, logits, rows))
    broken = data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))
    logits = logits.clone()
    for index in broken:
        value = data.draw(st.sampled_from((torch.nan, torch.inf, None)))
        if value is None:
            logits[index] = -torch.inf
        else:
            logits[index, data.draw(st.integers(0, logits.shape[1] - 1))] = value
    for index, entry in enumerate(entries(sample_all(make, logits, rows))):
        assert entry == ((0, None, True) if index in broken else whole[index])


def test_a_nan_under_a_ban_is_still_seen(make: Make) -> None:
    logits = torch.zeros(1, 40)
    logits[0, 7] = torch.nan
    row = row_of(Sampling(logit_bias=((7, -torch.inf),), repetition_penalty=2.0), [7, 7])
    assert sample_all(make, logits, [row]).not_finite == [True]


def test_the_least_temperatures_sample_the_argmax(make: Make) -> None:
    logits = torch.tensor([[-300.0, 250.0, 249.0, 3e38, -3e38, -torch.inf]])
    for temperature in (1e-5, 1e-30, 1e-45):
        params = Sampling(temperature=temperature, top_p=0.99, seed=3)
        for sampling in (params, replace(params, top_p=1.0), replace(params, min_p=0.1)):
            assert sample_all(make, logits, [row_of(sampling, [0])]).token_ids == [3]


def test_samples_over_positions_follow_the_distribution(make: Make) -> None:
    """Chi-square over 8192 tokens, with a wider margin than chance takes: the seeds are fixed."""
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1)) * 1.5
    prefixes = [[0] * (1 + position) for position in range(128)]
    for sampling in (Sampling(), Sampling(temperature=0.6), Sampling(top_p=0.8)):
        rows = [
            row_of(replace(sampling, seed=seed), prefix)
            for seed in range(64)
            for prefix in prefixes
        ]
        sampled = sample_all(make, logits.expand(len(rows), -1), rows)
        counts = torch.tensor(sampled.token_ids).bincount(minlength=50).double()
        weights = (logits.double() / sampling.temperature).softmax(0)
        if sampling.top_p < 1:
            order = weights.sort(descending=True).indices
            before = weights[order].cumsum(0) - weights[order]
            weights[order[before >= sampling.top_p]] = 0
        wanted = weights / weights.sum() * len(rows)
        assert counts[wanted == 0].sum() == 0
        kept = wanted > 0
        statistic = float(((counts - wanted)[kept] ** 2 / wanted[kept]).sum())
        freedom = int(kept.sum()) - 1
        assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def test_no_rows_sample_nothing(make: Make) -> None:
    assert sample_all(make, torch.empty(0, 40), []) == SamplerOutput([], [], [])
