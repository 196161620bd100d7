"""A request ends though others that come ahead of it never stop coming, whatever brings them ahead:
their priority, tenants that were never served, or targets that can still be met.

The planted faults at the end take away what bounds each; each is caught here.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName
from quire.scheduler.request import NewRequest
from quire.scheduler.shares import Shares
from quire.scheduler.urgency.urgency import MAX_TIMES
from tests.scheduler.driver import CONFIG, Driver, request

AGEING_S = 4.0
FIXED = settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate])


class Stream(NamedTuple):
    """Limits and blocks; one request, when it comes, and the others, by their number, of which
    `num_waiting` wait at any time. Its tenant was `served` elsewhere."""

    config: SchedulerConfig
    num_blocks: int
    num_host_blocks: int
    patient: NewRequest
    comes_at: int
    num_waiting: int
    num_prompt: int
    max_tokens: int
    other: Callable[[NewRequest, int], NewRequest]
    served: int


def urgent(new: NewRequest, _number: int) -> NewRequest:
    return replace(new, priority=-5)


def of_new_tenants(new: NewRequest, number: int) -> NewRequest:
    return replace(new, tenant=f"new{number}")


def in_time(new: NewRequest, _number: int) -> NewRequest:
    return replace(new, target_ttft_s=60.0, target_itl_s=0.1)


def all_of_these(new: NewRequest, number: int) -> NewRequest:
    return urgent(of_new_tenants(in_time(new, number), number), number)


KINDS = (urgent, of_new_tenants, in_time, all_of_these)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    max_num_seqs = draw(st.integers(1, 4))
    config = replace(
        CONFIG,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.sampled_from([1, 4, 40])),
        max_skips=draw(st.integers(0, 3)),
        scheduling_policy=draw(st.sampled_from(PolicyName)),
        priority_ageing_s=AGEING_S,
        preemption_mode=draw(st.sampled_from(PreemptionMode)),
    )
    patient = replace(
        request("patient", draw(st.integers(1, 16)), draw(st.integers(1, 14))),
        priority=draw(st.integers(-1, 5)),
        tenant="old",
        target_ttft_s=draw(st.sampled_from([None, 0.1, 3.0])),
        target_itl_s=draw(st.sampled_from([None, 0.1])),
    )
    return Stream(
        config,
        draw(st.integers(17, 60)),
        draw(st.sampled_from([0, 20])),
        patient,
        draw(st.sampled_from([0, 1, 12])),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 8)),
        draw(st.integers(1, 6)),
        draw(st.sampled_from(KINDS)),
        draw(st.sampled_from([0, 20])),
    )


def check_end(stream: Stream) -> None:
    """The one that is patient ends while the others still come.

    By then the device has computed its tokens, and what went ahead: those that came before, or
    within ten times the time in which a request counts as one priority better, or for whom it lost
    a place; some that fit where it did not; at worst seven tokens for each of its own. A token is
    computed in two steps at the least. What its tenant was served is made up for by the mean
    service of all who are here, a token a step at the least.
    """
    driver = Driver(stream.config, stream.num_blocks, num_host_blocks=stream.num_host_blocks)
    driver.scheduler.charge({stream.patient.tenant: float(stream.served)})
    size = len(stream.patient.prompt_token_ids) + stream.patient.stopping.max_tokens
    each = stream.num_prompt + stream.max_tokens
    num_ahead = stream.num_waiting + 2 * stream.config.max_num_seqs + stream.config.max_skips
    num_tokens = 8 * (MAX_TIMES + 1) * size + (MAX_TIMES + 1) * num_ahead * each
    num_live = stream.num_waiting + stream.config.max_num_seqs + 2
    num_steps = int(10 * AGEING_S) + stream.comes_at + 2 * num_tokens + stream.served * num_live
    for number in range(num_steps):
        if number == stream.comes_at:
            assert driver.add(stream.patient) is None
        for _ in range(len(driver.waiting), stream.num_waiting + 1):
            new = request(f"s{len(driver.news)}", stream.num_prompt, stream.max_tokens)
            driver.add(stream.other(new, len(driver.news)))
        driver.step()
        if "patient" in driver.finishes:
            break
    assert "patient" in driver.finishes, f"not done after {num_steps} steps"
    driver.run()


@given(streams())
def test_no_endless_stream_holds_a_request_back(stream: Stream) -> None:
    check_end(stream)


def takes_places_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.scheduler.urgency.urgency.MAX_TIMES", 1 << 30)


def gives_late_ones_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.scheduler.queue.LATE_SHARE", 0.0)


def lets_nobody_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "quire.scheduler.policy.Policy.priority_key",
        lambda _policy, new, *, arrived_s, lead_s, number: (new.priority, number),
    )


def keeps_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tenants start where the least served is, however long they have come."""

    def charge(shares: Shares, tenant: str, amount: float) -> None:
        shares._served[tenant] = shares.served(tenant) + amount

    monkeypatch.setattr(Shares, "_add", charge)


FAULTS = (takes_places_without_end, gives_late_ones_nothing, lets_nobody_age, keeps_the_level)


@pytest.mark.parametrize("plant", FAULTS)
def test_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        FIXED(given(streams())(check_end))()
