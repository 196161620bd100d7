"""The expected lengths of outputs: within the limits of the request, learnt from those that ended,
by tenant and endpoint."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.expectations.outputs import DOUBT, LOW, MAX_GROUPS, OutputExpectations
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Request, Sampling, Stopping

CACHE = KVCache(CacheConfig(2, 2))
ENDS = (2,)


def new(
    max_tokens: int, tenant: str = "", endpoint: str = "chat", min_tokens: int = 0
) -> NewRequest:
    stopping = Stopping(max_tokens, min_tokens, eos_token_ids=ENDS)
    return NewRequest("r", (1,), Sampling(), stopping, tenant=tenant, endpoint=endpoint)


def end(
    outputs: OutputExpectations, asked: NewRequest, num_outputs: int, reason: Reason | None = None
) -> None:
    """Let a request end with so many tokens: at the end of its text unless it has all it may."""
    request = Request(asked, CACHE.open_table(), [1] * (1 + num_outputs), "", (0.0, 1))
    is_cut = num_outputs == asked.stopping.max_tokens
    request.note(0.0, reason or (Reason.MAX_TOKENS if is_cut else Reason.END_OF_SEQUENCE))
    outputs.note_end(request)


def learnt(lengths: list[int], max_tokens: int = 10_000, tenant: str = "") -> OutputExpectations:
    outputs = OutputExpectations()
    for length in lengths:
        end(outputs, new(max_tokens, tenant), min(length, max_tokens))
    return outputs


lengths = st.lists(st.integers(1, 5000), max_size=40)


@given(lengths, st.integers(1, 5000), st.integers(0, 20), st.sampled_from(["", "other"]))
def test_expectations_are_within_the_limits_and_grow_with_them(
    seen: list[int], max_tokens: int, min_tokens: int, tenant: str
) -> None:
    outputs = learnt(seen, 3000)
    asked = [new(most, tenant, min_tokens=min(min_tokens, most)) for most in range(1, 5000, 97)]
    for expect in (outputs.mean, outputs.low):
        found = [expect(each) for each in asked]
        for each, length in zip(asked, found, strict=True):
            least = max(each.stopping.min_tokens, 1)
            assert least <= length <= each.stopping.max_tokens
        assert all(one <= other + 1e-9 for one, other in pairwise(found))


def test_nothing_is_known_before_an_output_has_ended() -> None:
    outputs = OutputExpectations()
    assert outputs.mean(new(300)) == 300
    assert outputs.low(new(300)) == 1


@given(st.integers(1, 4000), st.integers(30, 60))
def test_outputs_of_one_length_are_expected_of_about_that_length(length: int, num: int) -> None:
    outputs = learnt([length] * num)
    assert length / 1.5 <= outputs.mean(new(9000)) <= 1.5 * length + 1
    assert length / 1.5 <= outputs.low(new(9000)) <= length


@given(st.integers(1, 200), st.integers(300, 4000))
def test_the_mean_is_that_of_short_and_long(short: int, long: int) -> None:
    outputs = learnt([short, long] * 60)
    assert outputs.mean(new(9000)) == pytest.approx((short + long) / 2, rel=0.5, abs=2)
    assert outputs.low(new(9000)) <= short


def test_a_cut_output_says_nothing_of_what_it_might_have_had() -> None:
    outputs = learnt([64] * 50, max_tokens=64)
    assert outputs.mean(new(1000)) == 1000
    for _ in range(50):
        end(outputs, new(1000), 128)
    assert outputs.mean(new(1000)) == pytest.approx(128, rel=0.3)


def test_a_request_without_an_end_of_its_own_has_all_it_may() -> None:
    outputs = learnt([10] * 50)
    endless = NewRequest("r", (1,), Sampling(), Stopping(500))
    assert outputs.mean(endless) == outputs.low(endless) == 500
    for _ in range(50):
        end(outputs, replace(endless, tenant="", endpoint="chat"), 500)
    assert outputs.mean(new(1000)) < 20


def test_tenants_and_endpoints_are_told_apart_and_new_ones_are_like_all() -> None:
    outputs = OutputExpectations()
    for _ in range(30):
        end(outputs, new(5000, "a"), 1000)
        end(outputs, new(5000, "b"), 20)
        end(outputs, new(5000, "a", "completions"), 20)
    a, b = outputs.mean(new(5000, "a")), outputs.mean(new(5000, "b"))
    assert a > 10 * b and a > 10 * outputs.mean(new(5000, "a", "completions"))
    assert b < outputs.mean(new(5000, "c")) < a
    assert outputs.low(new(5000, "c")) == 1


def test_newer_outputs_count_more() -> None:
    outputs = learnt([2000] * 200 + [20] * 200)
    assert outputs.mean(new(5000)) < 100


@pytest.mark.parametrize(
    ("num_outputs", "reason"),
    [
        (0, Reason.ABORTED),
        (0, Reason.DEADLINE_EXCEEDED),
        (3, Reason.STEP_FAILED),
        (3, Reason.NOT_FINITE),
        (0, Reason.PROMPT_COMPUTED),
    ],
)
def test_ends_that_say_nothing_of_a_length_teach_nothing(num_outputs: int, reason: Reason) -> None:
    outputs = learnt([100] * 20)
    before = outputs.mean(new(5000))
    for _ in range(20):
        end(outputs, new(5000), num_outputs, reason)
    assert outputs.mean(new(5000)) == before


def test_an_output_that_ran_out_of_time_is_cut_and_an_aborted_one_has_ended() -> None:
    cut, aborted = OutputExpectations(), OutputExpectations()
    for _ in range(30):
        end(cut, new(5000), 100, Reason.DEADLINE_EXCEEDED)
        end(aborted, new(5000), 100, Reason.ABORTED)
    assert cut.mean(new(5000)) == 5000
    assert aborted.mean(new(5000)) < 150


def test_the_table_is_bounded_and_keeps_the_latest() -> None:
    outputs = OutputExpectations()
    for number in range(3 * MAX_GROUPS):
        end(outputs, new(5000, "steady"), 1000)
        end(outputs, new(5000, f"t{number}"), 10)
    assert len(outputs) == MAX_GROUPS
    assert outputs.mean(new(5000, "steady")) > 500


def test_the_low_expectation_needs_some_outputs_and_refusals_wear_it_off() -> None:
    outputs = OutputExpectations()
    num_seen = 0
    while outputs.low(new(5000)) < 100:
        end(outputs, new(5000), 1000)
        num_seen += 1
    assert num_seen > DOUBT / LOW - DOUBT
    for _ in range(30):
        end(outputs, new(5000), 1000)
    num_refused = 0
    while outputs.low(new(5000)) > 1:
        outputs.note_refusal(new(5000))
        num_refused += 1
    assert 5 < num_refused < 100
    outputs.note_refusal(new(5000, "unknown"))
