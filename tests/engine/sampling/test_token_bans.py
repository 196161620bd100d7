"""Bad words and allowed token ids: outputs keep to them, alone, in a batch and preempted."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.sampling.logits_processor import ProcessorContext
from quire.engine.sampling.sampling_state import SamplingState, build_sampling_state
from quire.scheduler.request import Sampling, Stopping
from tests.engine.invariants import arrivals, check_invariants, shapes
from tests.engine.sampling.sampler_cases import Make
from tests.engine.toy_engine import VOCAB_SIZE, Arrival, Shape, alone
from tests.profiles import cases

Words = tuple[tuple[int, ...], ...]


def words_of(num_ids: int) -> st.SearchStrategy[Words]:
    word = st.lists(st.integers(0, num_ids - 1), min_size=1, max_size=4).map(tuple)
    return st.lists(word, min_size=1, max_size=12).map(tuple)


def holds(output: Sequence[int], word: Sequence[int]) -> bool:
    starts = range(len(output) - len(word) + 1)
    return any(tuple(output[at : at + len(word)]) == tuple(word) for at in starts)


def state_of(sampling: Sampling, token_ids: Sequence[int] = (0,)) -> SamplingState:
    return build_sampling_state(ProcessorContext(sampling, Stopping(64), token_ids, 1))


ALLOWED = st.lists(st.integers(8, VOCAB_SIZE - 1), min_size=1, max_size=6).map(tuple)
bans: st.SearchStrategy[tuple[Words, tuple[int, ...]]] = st.one_of(
    st.tuples(words_of(12), st.just(())), st.tuples(st.just(()), ALLOWED)
)


@cases(100)
@given(shapes(), arrivals(), st.lists(bans, min_size=8, max_size=8))
def test_same_text_without_what_is_banned_alone_or_in_any_batch(
    shape: Shape, script: list[Arrival], given: list[tuple[Words, tuple[int, ...]]]
) -> None:
    for index, (arrival, (words, allowed)) in enumerate(zip(script, given, strict=False)):
        old = arrival.new
        sampling = replace(old.sampling, bad_words=words, allowed_token_ids=allowed)
        stopping = replace(old.stopping, min_tokens=0)  # what is allowed may be its end alone
        script[index] = replace(arrival, new=replace(old, sampling=sampling, stopping=stopping))
        output = alone(script[index].new, shape.layers)
        assert not any(holds(output, word) for word in words)
        assert set(output) <= set(allowed or output)
    check_invariants(shape, script)


@cases(50)
@given(words_of(5), st.integers(0, 2**32))
def test_only_the_end_of_a_bad_word_is_banned_also_after_a_preemption(
    make: Make, words: Words, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    params = Sampling(temperature=0.0, bad_words=words)
    state, sampler, output = state_of(params), make(8), list[int]()
    for _ in range(25):
        logits = torch.randn(1, 8, generator=generator)
        rows = (state, state_of(params, [0, *output]), state_of(Sampling(0.0), [0, *output]))
        token_id, again, free = (
            sampler.sample(logits, [each]).result().token_ids[0] for each in rows
        )
        assert again == token_id
        if token_id != free:
            assert any(holds([*output, free], word) for word in words)
        state.append(token_id)
        output.append(token_id)
    assert not any(holds(output, word) for word in words)


@pytest.mark.parametrize("vocab_size", [24, 32, 33, 300])
def test_ids_at_the_edges_of_words_are_allowed(make: Make, vocab_size: int) -> None:
    for token_id in {0, 23, min(31, vocab_size - 1), vocab_size - 1}:
        params = Sampling(allowed_token_ids=(token_id, vocab_size + 40))
        logits = torch.zeros(1, vocab_size)
        assert make(vocab_size).sample(logits, [state_of(params)]).result().token_ids == [token_id]


def test_a_bad_word_in_the_prompt_bans_nothing(make: Make) -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0]])
    params = Sampling(temperature=0.0, bad_words=((0, 1),))
    assert make(3).sample(logits, [state_of(params, (0,))]).result().token_ids == [1]
    assert make(3).sample(logits, [state_of(params, (2, 0))]).result().token_ids == [2]
