"""Log probabilities: of the model's own distribution, whatever the request asks of its logits."""

from typing import NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.scheduler.request import Sampling, TokenLogprobs
from tests.engine.sampling.sampler_cases import (
    VOCAB_SIZES,
    Make,
    logits_of,
    row_of,
    sample_all,
    sum_error,
)


class Truth(NamedTuple):
    """Log probabilities [vocab_size] in float64, and how far those of a sampler may be off: by as
    much as the sum of exponentials is, relative, for all else is computed in float64 too."""

    logprobs: Tensor
    error: float

    def is_close(self, found: float, token_id: int) -> bool:
        wanted = float(self.logprobs[token_id])
        return found == wanted or abs(found - wanted) <= self.error


def truth_of(logits: Tensor) -> Truth:
    logprobs = logits.double().log_softmax(-1)
    return Truth(logprobs, sum_error(logprobs.exp(), logprobs.max() - logprobs))


@given(st.data())
def test_log_probabilities_are_those_of_log_softmax(make: Make, data: st.DataObject) -> None:
    vocab_size = data.draw(st.sampled_from(VOCAB_SIZES))
    logits = data.draw(logits_of(vocab_size, 2))
    ids = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=2, max_size=2))
    num_top = data.draw(st.sampled_from((0, 1, 5, 33, 131, 1001)))
    truths = [truth_of(row) for row in logits]
    order = logits.float().sort(descending=True, stable=True).indices.tolist()
    for index, scored in enumerate(make(logits.shape[1]).score(logits, ids, num_top)):
        assert scored.token_id == ids[index]
        assert truths[index].is_close(scored.logprob, ids[index])
        assert [token_id for token_id, _ in scored.top] == order[index][:num_top]
        row = logits[index].float()
        assert scored.rank == int((row > row[ids[index]]).sum()) + 1
        assert all(truths[index].is_close(found, top_id) for top_id, found in scored.top)


def test_large_vocabularies_are_scored_a_slab_at_a_time(make: Make) -> None:
    logits = torch.randn(20, 151_936, generator=torch.Generator().manual_seed(3)) * 3
    sampler = make(logits.shape[1])
    scored = sampler.score(logits, list(range(20)), 2)
    for index, each in enumerate(scored):
        assert truth_of(logits[index]).is_close(each.logprob, index)
        assert each.top[0][0] == int(logits[index].argmax())
        assert scored[index : index + 1] == sampler.score(logits[index : index + 1], [index], 2)


def test_only_rows_that_request_it_are_scored_and_by_the_unprocessed_logits(make: Make) -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, 2.0]] * 4)
    forced = Sampling(temperature=0.1, top_k=1, logit_bias=((0, 50.0),))
    none, chosen, two = (None, 0, 2)
    rows = [
        row_of(
            Sampling(
                temperature=forced.temperature,
                top_k=forced.top_k,
                logit_bias=forced.logit_bias,
                num_logprobs=num_logprobs,
            ),
            [0],
        )
        for num_logprobs in (two, none, chosen, none)
    ]
    sampled = sample_all(make, logits, rows)
    assert sampled.token_ids == [0, 0, 0, 0]
    first, second, third, fourth = sampled.logprobs
    assert second is None
    assert fourth is None
    assert first is not None
    assert third is not None
    assert truth_of(logits[0]).is_close(first.logprob, 0)
    assert [token_id for token_id, _ in first.top] == [2, 1]
    assert third == TokenLogprobs(0, first.logprob, ())


def test_numbers_are_python_numbers(make: Make) -> None:
    (scored,) = make(32).score(torch.zeros(1, 32, dtype=torch.bfloat16), [3], 1)
    assert type(scored.token_id) is int
    assert type(scored.logprob) is float
    assert [(type(token_id), type(value)) for token_id, value in scored.top] == [(int, float)]


def test_no_rows_are_no_scores(make: Make) -> None:
    assert make(32).score(torch.empty(0, 32), [], 3) == []
