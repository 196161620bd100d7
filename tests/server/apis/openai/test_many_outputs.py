"""Requests of many outputs beside each other."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from tests.server.served import Served


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
