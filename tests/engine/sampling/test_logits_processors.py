"""Logits processors: bans, biases, penalties and masks, seen through what is sampled."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.sampling.logits_processor import ProcessorContext, RowEdits
from quire.engine.sampling.sampling_state import build_sampling_state
from quire.scheduler.request import Sampling, Stopping
from tests.engine.sampling.sampler_cases import (
    Allowed,
    Case,
    Make,
    cases,
    logits_of,
    processed,
    row_of,
    sample_all,
)

GREEDY = Sampling(temperature=0.0)


@given(st.data())
def test_processed_logits_are_those_of_a_dense_pass_over_the_vocabulary(
    make: Make, data: st.DataObject
) -> None:
    vocab_size = data.draw(st.sampled_from((32, 33, 300)))
    rows = data.draw(st.lists(cases(vocab_size), min_size=1, max_size=5))
    logits = data.draw(logits_of(vocab_size, len(rows)))
    dense = torch.stack([processed(logits[index], row) for index, row in enumerate(rows)])
    edited = [
        replace(
            row, sampling=replace(row.sampling, top_k=0, top_p=1.0, min_p=0.0, num_logprobs=None)
        )
        for row in rows
    ]
    plain = [
        row_of(Sampling(row.sampling.temperature, seed=row.sampling.seed), row.token_ids)
        for row in rows
    ]
    assert sample_all(make, logits, edited) == sample_all(make, dense, plain)


@given(st.lists(st.lists(st.integers(0, 31), max_size=6), min_size=1, max_size=6))
def test_counts_kept_along_the_way_are_counts_taken_afresh(bursts: list[list[int]]) -> None:
    state = row_of(Sampling(presence_penalty=1.0), [1, 2, 2], num_prompt_tokens=3).state()
    for burst in bursts:
        for token_id in burst:
            state.append(token_id)
        penalties = state.edits(32).penalties
        assert penalties is not None
        outputs = Counter(state.token_ids[3:])
        assert dict(zip(penalties.seen.ids, penalties.seen.counts, strict=True)) == {
            token_id: outputs[token_id] for token_id in state.token_ids
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
    state = Case(GREEDY, (3,), 1, stopping).state()
    sampler = make(4)
    sampled: list[int] = []
    for _ in range(4):
        assert (state.processors == []) == (len(sampled) >= 2)
        sampled += sampler.sample(logits, [state]).result().token_ids
        state.append(sampled[-1])
    assert sampled == [2, 2, 0, 0]


def test_processors_of_one_row_leave_the_others(make: Make) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]] * 3)
    params = Sampling(temperature=0.0, logit_bias=((0, -5.0),), presence_penalty=2.0)
    rows = [row_of(GREEDY, [0, 0]), row_of(params, [2, 1]), row_of(GREEDY, [0, 0])]
    assert sample_all(make, logits, rows).token_ids == [0, 2, 0]
    assert sample_all(make, logits, [row_of(GREEDY, [0, 0])] * 3).token_ids == [0, 0, 0]


def test_a_mask_leaves_the_tokens_whose_bits_are_set(make: Make) -> None:
    logits = torch.arange(300).float()[None].repeat(3, 1)
    greedy = Case(GREEDY, (0,), 1, allowed=frozenset({3, 31, 32, 130}))
    free = Case(Sampling(seed=4), (0,), 1, allowed=frozenset({0, 127, 128}))
    assert sample_all(make, logits, [greedy, row_of(GREEDY, [0]), greedy]).token_ids == [
        *(130, 299, 130)
    ]
    assert sample_all(make, logits * 0, [free] * 3).token_ids[0] in (0, 127, 128)


def test_a_mask_goes_before_a_bias_that_would_undo_it(make: Make) -> None:
    params = Sampling(temperature=0.0, logit_bias=((2, 100.0),))
    masked = Case(params, (0,), 1, allowed=frozenset({0, 1}))
    assert sample_all(make, torch.tensor([[0.0, 1.0, 2.0]]), [masked]).token_ids == [1]


def test_masks_of_two_processors_leave_what_both_allow(make: Make) -> None:
    state = Case(GREEDY, (0,), 1, allowed=frozenset({1, 2})).state()
    state.processors.append(Allowed(frozenset({0, 1})))
    sampled = make(4).sample(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), [state]).result()
    assert sampled.token_ids == [1]


def test_a_mask_that_leaves_nothing_fails_its_row_alone(make: Make) -> None:
    nothing = Case(GREEDY, (0,), 1, allowed=frozenset())
    sampled = sample_all(make, torch.ones(2, 40), [nothing, row_of(GREEDY, [0])])
    assert sampled.not_finite == [True, False]


def test_log_probabilities_are_those_of_the_model_without_the_mask(make: Make) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    masked = Case(Sampling(temperature=0.0, num_logprobs=1), (0,), 1, allowed=frozenset({1}))
    (scored,) = sample_all(make, logits, [masked]).logprobs
    assert scored is not None
    wanted = logits[0].double().log_softmax(-1)
    assert scored.token_id == 1 and abs(scored.logprob - float(wanted[1])) < 1e-6
    assert scored.top[0][0] == 3


def test_a_nan_under_a_mask_is_still_seen(make: Make) -> None:
    logits = torch.zeros(1, 40)
    logits[0, 7] = torch.nan
    masked = Case(Sampling(), (0,), 1, allowed=frozenset({1}))
    assert sample_all(make, logits, [masked]).not_finite == [True]


def test_masks_of_another_size_are_refused() -> None:
    edits = RowEdits(65)
    with pytest.raises(ValueError, match=r"must be int32 \(3,\) on the CPU"):
        edits.allow(torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ValueError, match="must be int32"):
        edits.allow(torch.zeros(3, dtype=torch.int64))


class ParityOfOutputs:
    """Allows even ids after an even number of outputs, and odd ids after an odd one."""

    def __init__(self, num_outputs: int) -> None:
        self.num_outputs = num_outputs

    @property
    def is_done(self) -> bool:
        return self.num_outputs >= 4

    def accept(self, token_id: int) -> None:
        self.num_outputs += 1

    def edit(self, edits: RowEdits) -> None:
        parity = self.num_outputs % 2
        edits.ban(range(1 - parity, edits.vocab_size, 2))


def test_a_processor_is_told_of_each_token_and_dropped_when_done(make: Make) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    context = ProcessorContext(GREEDY, Stopping(64), (3,), 1)
    state = build_sampling_state(context, (lambda start: ParityOfOutputs(len(start.output_ids)),))
    sampler = make(4)
    sampled: list[int] = []
    for _ in range(6):
        sampled += sampler.sample(logits, [state]).result().token_ids
        state.append(sampled[-1])
    assert sampled == [2, 3, 2, 3, 3, 3]
    assert state.processors == []
