"""top_k, top_p and min_p: which tokens may be sampled. Many samples of a row find the whole set."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from quire.scheduler.request import Sampling
from tests.engine.sampling.sampler_cases import Make, logits_of, reference, row_of, sample_all

PREFIXES = [[0] * (1 + position) for position in range(400)]
TOKENS_3000 = torch.linspace(0, 3, 3000)


def support(make: Make, logits: Tensor, sampling: Sampling) -> set[int]:
    rows = [row_of(sampling, prefix) for prefix in PREFIXES]
    return set(sample_all(make, logits.expand(len(rows), -1), rows).token_ids)


def of_probabilities(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities).log()


@given(st.data())
def test_only_kept_tokens_are_sampled_and_all_likely_ones(make: Make, data: st.DataObject) -> None:
    logits = data.draw(logits_of(data.draw(st.sampled_from((32, 129, 300))), 1))[0]
    sampling = Sampling(
        temperature=data.draw(st.sampled_from((0.5, 1.0, 3.0))),
        top_k=data.draw(st.sampled_from((0, 1, 5, 100))),
        top_p=data.draw(st.sampled_from((1.0, 0.9, 0.5, 0.1))),
        min_p=data.draw(st.sampled_from((0.0, 0.01, 0.3))),
        seed=data.draw(st.integers(0, 1000)),
    )
    judged = reference(logits, row_of(sampling, [0]))
    assume(judged.is_sure)
    sampled = support(make, logits, sampling)
    may = set(judged.probabilities.nonzero()[:, 0].tolist())
    must = set((judged.probabilities > 0.08).nonzero()[:, 0].tolist())
    assert must <= sampled <= may


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_k=1),
        Sampling(top_p=1e-9),
        Sampling(top_p=0.0),
        Sampling(min_p=1.0, top_k=1),
        Sampling(temperature=1e-6, top_k=40, top_p=0.9, min_p=0.1),
    ],
)
@given(data=st.data())
def test_the_narrowest_options_are_greedy(
    make: Make, sampling: Sampling, data: st.DataObject
) -> None:
    logits = data.draw(logits_of(data.draw(st.sampled_from((32, 1000, 9000))), 3))
    greedy = sample_all(make, logits, [row_of(Sampling(temperature=0.0), [0])] * 3).token_ids
    narrow = sample_all(make, logits, [row_of(sampling, [0])] * 3).token_ids
    if sampling.temperature < 1:  # as likely tokens stay as likely
        places = torch.arange(3)
        assert torch.equal(logits[places, narrow], logits[places, greedy])
    else:
        assert narrow == greedy


@pytest.mark.parametrize(
    "wide",
    [
        Sampling(top_p=1.0, top_k=3000),
        Sampling(top_k=3001),
        Sampling(top_k=2**62),
        Sampling(top_p=1 - 2**-53),
        Sampling(min_p=1e-9),
    ],
)
def test_the_widest_options_keep_every_token(make: Make, wide: Sampling) -> None:
    rows = [row_of(wide, prefix) for prefix in PREFIXES]
    free = [row_of(Sampling(), prefix) for prefix in PREFIXES]
    logits = TOKENS_3000.expand(len(rows), -1)
    assert sample_all(make, logits, rows).token_ids == sample_all(make, logits, free).token_ids


def test_equally_likely_tokens_are_kept_by_rising_id(make: Make) -> None:
    logits = torch.zeros(300)
    logits[200] = math.log(2)
    assert support(make, logits, Sampling(top_k=4)) == {0, 1, 2, 200}
    assert support(make, logits, Sampling(top_p=4.5 / 301)) == {0, 1, 2, 200}
    assert support(make, logits, Sampling(min_p=1.0)) == {200}
    assert support(make, torch.zeros(32), Sampling(min_p=1.0)) == set(range(32))
    assert support(make, torch.zeros(32), Sampling(top_p=0.5)) == set(range(16))


def test_ties_at_the_threshold_of_a_wide_top_p_are_kept_by_rising_id(make: Make) -> None:
    logits = torch.zeros(4096)
    assert support(make, logits, Sampling(top_p=2**-6)) == set(range(64))
    sampled = support(make, logits, Sampling(top_p=0.25))
    assert max(sampled) < 1024
    assert len(sampled) > 300


def test_top_p_counts_what_top_k_left(make: Make) -> None:
    """0.5 of all tokens is 0.625 of the two that top_k keeps: enough for a top_p of 0.6."""
    logits = of_probabilities(0.3, 0.5, 0.2)
    assert support(make, logits, Sampling(top_k=2, top_p=0.6)) == {1}
    assert support(make, logits, Sampling(top_p=0.6)) == {0, 1}


def test_top_p_counts_what_min_p_left(make: Make) -> None:
    """0.7 of all tokens is 0.78 of the three that min_p keeps: enough for a top_p of 0.75."""
    logits = of_probabilities(0.4, 0.3, 0.2, 0.1)
    assert support(make, logits, Sampling(min_p=0.45, top_p=0.75)) == {0, 1}
    assert support(make, logits, Sampling(top_p=0.75)) == {0, 1, 2}


def test_options_apply_after_temperature(make: Make) -> None:
    logits = of_probabilities(0.7, 0.2, 0.1)
    assert support(make, logits, Sampling(top_p=0.65)) == {0}
    assert support(make, logits, Sampling(temperature=4.0, top_p=0.65)) == {0, 1}
    assert support(make, logits, Sampling(min_p=0.3)) == {0}
    assert support(make, logits, Sampling(temperature=4.0, min_p=0.7)) == {0, 1}


def test_a_top_p_set_of_any_width_is_found(make: Make) -> None:
    """Of many samples the least likely is within the top_p set, and among its last hundredths."""
    sampler = make(3000)
    probabilities = TOKENS_3000.double().softmax(0).flip(0)
    for top_p in (0.001, 0.05, 0.3, 0.9, 0.999):
        width = int((probabilities.cumsum(0) - probabilities < top_p).sum())
        rows = [row_of(Sampling(top_p=top_p, seed=seed), [0]) for seed in range(800)]
        states = [row.state() for row in rows]
        sampled = sampler.sample(TOKENS_3000.expand(len(rows), -1), states).result().token_ids
        least = 3000 - width
        assert least <= min(sampled) <= least + 0.03 * width + 1
