"""A small crowd against a short queue: all are served in the end, and nobody hangs. `make overload`
has the large one, and says how true `Retry-After` is.
"""

import pytest

from tests.e2e.overload import MODES, Crowd, overload


@pytest.mark.long  # a full queue is among the attacks of every run, hostile/test_hostile.py
@pytest.mark.parametrize("mode", MODES)
def test_a_crowd_is_served_or_told_to_come_again(mode: str) -> None:
    crowd = Crowd(num_requests=60, num_tokens=48, max_num_queued_reqs=8, max_num_seqs=4)
    summary = overload(crowd, mode)
    assert set(summary.statuses) == {200, 503}
    assert summary.statuses[200] == crowd.num_requests
    assert summary.num_incomplete == 0
    assert summary.num_refused > 10
    assert summary.told_s[1] < 10 * summary.waited_s[1] + 2
