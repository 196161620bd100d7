"""Several outputs of a prompt: forks of the first, and the best of more than are shown."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, repeat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.scheduler.request import NewRequest
from tests.profiles import cases
from tests.server.scripted_engine import logprobs_of
from tests.server.served import Served


def index_of(request: NewRequest) -> int:
    return int(request.id.rsplit("-", 1)[1])


def draws(token_ids: list[int], served: Served) -> None:
    """The choice with index i repeats the i-th token."""

    def script(request: NewRequest) -> Iterator[int]:
        return repeat(token_ids[index_of(request)])

    served.engine.script = script


def test_choices_after_the_first_fork_from_it(served: Served) -> None:
    served.complete(prompt=["a", "b"], n=3, max_tokens=1)
    ids = [request.id for request in served.engine.submitted]
    forks = [request.fork_of for request in served.engine.submitted]
    assert forks == [None, ids[0], ids[0], None, ids[3], ids[3]]
    served.engine.submitted.clear()
    served.chat(messages=[{"role": "user", "content": "a"}], n=2, max_tokens=1)
    first, second = served.engine.submitted
    assert (first.fork_of, second.fork_of) == (None, first.id)
    assert first.prompt_token_ids == second.prompt_token_ids
    assert first.sharing == second.sharing


def test_scored_prompts_are_computed_for_each_choice(served: Served) -> None:
    body = served.complete(prompt=[5, 6, 7], n=2, echo=True, logprobs=0, max_tokens=1).json()
    assert [request.fork_of for request in served.engine.submitted] == [None, None]
    assert [len(each["logprobs"]["tokens"]) for each in body["choices"]] == [4, 4]


@settings(cases(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), num_prompts=st.integers(1, 3), best_of=st.integers(1, 5))
def test_the_likeliest_are_shown_best_first(
    served: Served, data: st.DataObject, num_prompts: int, best_of: int
) -> None:
    n = data.draw(st.integers(1, best_of))
    num = num_prompts * best_of
    token_ids = data.draw(st.lists(st.integers(100, 400), min_size=num, max_size=num))
    draws(token_ids, served)
    body = served.complete(
        prompt=["x"] * num_prompts, n=n, best_of=best_of, max_tokens=2, return_token_ids=True
    ).json()
    expected = []
    for start in range(0, num, best_of):
        drawn = token_ids[start : start + best_of]
        ranked = sorted(drawn, key=lambda id: -logprobs_of(id, 0).logprob)
        expected += (ranked if n < best_of else drawn)[:n]
    indices = list(range(n * num_prompts))
    assert [choice["token_ids"][0] for choice in body["choices"]] == expected
    assert [choice["index"] for choice in body["choices"]] == indices
    assert all(choice["logprobs"] is None for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == 2 * num
    assert [timing["index"] for timing in body["quire"]["timings"]] == indices


@pytest.mark.parametrize("logprobs", [0, 2])
def test_log_probabilities_are_told_if_asked_for(served: Served, logprobs: int) -> None:
    draws([300, 200], served)
    body = served.complete(prompt="x", best_of=2, logprobs=logprobs, max_tokens=2).json()
    (choice,) = body["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-0.2, -0.2]
    assert len(choice["logprobs"]["top_logprobs"][0]) == logprobs + 1


def test_log_probabilities_are_not_asked_for_without_a_choice_to_make(served: Served) -> None:
    served.complete(prompt="x", best_of=2, n=2)
    assert {request.sampling.num_logprobs for request in served.engine.submitted} == {None}


def test_an_output_is_ranked_by_its_mean_not_its_sum(served: Served) -> None:
    def script(request: NewRequest) -> Iterator[int]:
        return iter([300, 1]) if index_of(request) == 0 else repeat(100)

    served.engine.script = script
    body = served.complete(prompt="x", best_of=2, max_tokens=5, return_token_ids=True).json()
    assert body["choices"][0]["token_ids"] == [100] * 5


def test_one_request_is_handed_over_whole_before_the_next(served: Served) -> None:
    """Two that submit in alternation fill the queue together, and neither gets all of its outputs
    in."""
    num_requests, num_prompts = 3, 300

    def ask(_: int) -> int:
        return served.complete(prompt=["x"] * num_prompts, max_tokens=1).status_code

    with ThreadPoolExecutor(num_requests) as pool:
        assert set(pool.map(ask, range(num_requests))) == {200}
    owners = [request.id.rpartition("-")[0] for request in served.engine.submitted]
    assert len(owners) == num_requests * num_prompts
    assert sum(one != other for one, other in pairwise(owners)) == num_requests - 1
