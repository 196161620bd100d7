"""Logits processors: bans, biases and penalties, seen through what is sampled."""

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.sampling.sampling_state import SamplingState
from quire.scheduler.request import Sampling, Stopping
from tests.engine.sampler_cases import (
    Make,
    logits_of,
    processed,
    row_of,
    sample_all,
    sampling_states,
)

GREEDY = Sampling(temperature=0.0)


@given(st.data())
def test_processed_logits_are_those_of_a_dense_pass_over_the_vocabulary(
    make: Make, data: st.DataObject
) -> None:
    vocab_size = data.draw(st.sampled_from((32, 300)))
    rows = data.draw(st.lists(sampling_states(vocab_size), min_size=1, max_size=5))
    logits = data.draw(logits_of(vocab_size, len(rows)))
    dense = torch.stack([processed(logits[index], row) for index, row in enumerate(rows)])
    plain = [
        row_of(Sampling(temperature=row.sampling.temperature, seed=row.sampling.seed), [])
        for row in rows
    ]
    for row, bare in zip(rows, plain, strict=True):
        bare.token_ids += row.token_ids
        row.sampling = Sampling(
            temperature=bare.sampling.temperature,
            seed=bare.sampling.seed,
            repetition_penalty=row.sampling.repetition_penalty,
            frequency_penalty=row.sampling.frequency_penalty,
            presence_penalty=row.sampling.presence_penalty,
            logit_bias=row.sampling.logit_bias,
        )
    assert sample_all(make, logits, rows) == sample_all(make, dense, plain)


@given(st.lists(st.lists(st.integers(0, 31), max_size=6), min_size=1, max_size=6))
def test_counts_kept_along_the_way_are_counts_taken_afresh(bursts: list[list[int]]) -> None:
    row = row_of(Sampling(presence_penalty=1.0), [1, 2, 2], num_prompt_tokens=3)
    for burst in bursts:
        row.token_ids += burst
        seen = row.seen()
        outputs = Counter(row.token_ids[3:])
        assert dict(zip(seen.ids, seen.counts, strict=True)) == {
            token_id: outputs[token_id] for token_id in row.token_ids
        }


def test_repetition_penalty_reads_prompt_and_outputs(make: Make) -> None:
    logits = torch.tensor([[2.0, 1.9, 1.8, -5.0]])
    params = Sampling(temperature=0.0, repetition_penalty=1.2)
    assert sample_all(make, logits, [row_of(params, [0, 1], num_prompt_tokens=1)]).token_ids == [2]
    negative = torch.tensor([[-1.0, -1.1, -9.0]])
    assert sample_all(make, negative, [row_of(params, [0])]).token_ids == [1]


def test_frequency_and_presence_penalties_read_outputs_alone(make: Make) -> None:
    logits = torch.tensor([[2.0, 1.9, 1.0, -5.0]])
    for params in (
        Sampling(temperature=0.0, frequency_penalty=0.2),
        Sampling(temperature=0.0, presence_penalty=0.2),
    ):
        assert sample_all(make, logits, [row_of(params, [0, 0, 0], 3)]).token_ids == [0]
        assert sample_all(make, logits, [row_of(params, [0, 0, 0], 2)]).token_ids == [1]
    often = Sampling(temperature=0.0, frequency_penalty=0.4)
    assert sample_all(make, logits, [row_of(often, [3, 0, 0, 0, 1, 1, 1], 1)]).token_ids == [2]
    once = Sampling(temperature=0.0, presence_penalty=0.4)
    assert sample_all(make, logits, [row_of(once, [3, 0, 0, 0, 1, 1, 1], 1)]).token_ids == [0]


def test_biases_force_and_forbid(make: Make) -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(2)) * 3
    peak = int(logits.argmax())
    for seed in range(20):
        forced = Sampling(seed=seed, logit_bias=((77, 100.0), (3, 1.0)))
        assert sample_all(make, logits, [row_of(forced, [0])]).token_ids == [77]
        forbidden = Sampling(temperature=0.3, seed=seed, logit_bias=((peak, -100.0),))
        assert sample_all(make, logits, [row_of(forbidden, [0])]).token_ids != [peak]


def test_ends_are_banned_up_to_min_tokens(make: Make) -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0, 0.0]])
    stopping = Stopping(64, min_tokens=2, eos_token_ids=(0,), stop_token_ids=(1, 999))
    row = SamplingState(GREEDY, stopping, [3], 1)
    sampler = make(4)
    sampled = []
    for _ in range(4):
        sampled += sampler.sample(logits, [row]).result().token_ids
        row.token_ids.append(sampled[-1])
    assert sampled == [2, 2, 0, 0]


def test_processors_of_one_row_leave_the_others(make: Make) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]] * 3)
    params = Sampling(temperature=0.0, logit_bias=((0, -5.0),), presence_penalty=2.0)
    rows = [row_of(GREEDY, [0, 0]), row_of(params, [2, 1]), row_of(GREEDY, [0, 0])]
    assert sample_all(make, logits, rows).token_ids == [0, 2, 0]
    assert sample_all(make, logits, [row_of(GREEDY, [0, 0])] * 3).token_ids == [0, 0, 0]
