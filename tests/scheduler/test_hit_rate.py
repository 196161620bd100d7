"""The window of the hit rate, held against a list that is cut to length."""

from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.accounts import HitRate


def test_the_newest_thousand_requests_count() -> None:
    """As the help of the metric says."""
    window = HitRate()
    for num_hits in [0] * 500 + [10] * 1000:
        window.observe(10, num_hits)
    assert (len(window), window.rate) == (1000, 1.0)


REQUESTS = st.tuples(st.integers(0, 50), st.floats(0, 1)).map(
    lambda pair: (pair[0], int(pair[0] * pair[1]))
)


@given(st.lists(REQUESTS | st.none(), max_size=60), st.integers(1, 10))
def test_sums_are_those_of_the_last_requests_that_looked_anything_up(
    updates: list[tuple[int, int] | None], most: int
) -> None:
    window, seen = HitRate(most), list[tuple[int, int]]()
    for update in updates:
        if update is None:
            window.reset()
            seen.clear()
            continue
        window.observe(*update)
        if update[0]:
            seen = [*seen, update][-most:]
        assert len(window) == len(seen) <= most
        assert window.num_queries == sum(queries for queries, _ in seen)
        assert window.num_hits == sum(hits for _, hits in seen)
