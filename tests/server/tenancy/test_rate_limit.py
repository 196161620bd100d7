"""The rate limit of a key: held against a bucket that is plain to see, with exact fractions."""

from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from quire.server.tenancy.rate_limit import PERIOD_NS, RateLimit

LIMITS = st.integers(1, 10**12) | st.integers(1, 100)
PAUSES = st.integers(0, 3 * PERIOD_NS) | st.integers(0, 10)
AMOUNTS = st.integers(1, 200)
STEPS = st.lists(st.tuples(PAUSES, AMOUNTS), max_size=30)


class NaiveBucket:
    """A token bucket that holds one minute's amount and fills all the time."""

    def __init__(self, limit: int) -> None:
        self.limit, self.level, self.now_ns = limit, Fraction(limit), 0

    def fill(self, now_ns: int) -> None:
        gained = Fraction(self.limit * (now_ns - self.now_ns), PERIOD_NS)
        self.level, self.now_ns = min(self.level + gained, Fraction(self.limit)), now_ns


@given(limit=LIMITS, steps=STEPS, forced=st.sets(st.integers(0, 29)))
def test_it_is_a_token_bucket(limit: int, steps: list[tuple[int, int]], forced: set[int]) -> None:
    rate, bucket, now_ns = RateLimit(limit), NaiveBucket(limit), 0
    for index, (pause_ns, amount) in enumerate(steps):
        now_ns += pause_ns
        bucket.fill(now_ns)
        assert rate.left(now_ns) == max(bucket.level // 1, 0)
        assert (rate.reset_ns(now_ns) == 0) == (bucket.level == limit)
        may = bucket.level >= min(amount, limit)
        assert (rate.wait_ns(now_ns, amount) == 0) == may
        if may or index in forced:
            rate.take(now_ns, amount)
            bucket.level -= amount


@given(limit=LIMITS, steps=STEPS)
@example(limit=1, steps=[(0, 1), (PERIOD_NS - 1, 1), (1, 1)])
def test_no_window_has_more_than_the_limit_beyond_a_burst(
    limit: int, steps: list[tuple[int, int]]
) -> None:
    rate, now_ns = RateLimit(limit), 0
    taken: list[tuple[int, int]] = []
    for pause_ns, amount in steps:
        now_ns += pause_ns
        if amount <= limit and rate.wait_ns(now_ns, amount) == 0:
            rate.take(now_ns, amount)
            taken.append((now_ns, amount))
    for first, (begin_ns, _) in enumerate(taken):
        total = 0
        for end_ns, amount in taken[first:]:
            total += amount
            assert total <= limit + Fraction(limit * (end_ns - begin_ns), PERIOD_NS)


@given(limit=LIMITS, steps=STEPS, amount=AMOUNTS, debt=st.integers(0, 10**4))
def test_the_wait_is_exact(
    limit: int, steps: list[tuple[int, int]], amount: int, debt: int
) -> None:
    rate, now_ns = RateLimit(limit), 0
    for pause_ns, taken in steps:
        now_ns += pause_ns
        rate.take(now_ns, taken)
    rate.take(now_ns, debt)
    wait_ns = rate.wait_ns(now_ns, amount)
    assert rate.wait_ns(now_ns + wait_ns, amount) == 0
    if wait_ns:
        assert rate.wait_ns(now_ns + wait_ns - 1, amount) == 1
    full_ns = rate.reset_ns(now_ns)
    assert rate.left(now_ns + full_ns) == limit
    if full_ns:
        assert rate.left(now_ns + full_ns - 1) < limit


@given(limit=LIMITS, amount=AMOUNTS, pause_ns=PAUSES)
def test_what_is_given_back_was_never_taken(limit: int, amount: int, pause_ns: int) -> None:
    rate, untouched = RateLimit(limit), RateLimit(limit)
    for each in (rate, untouched):
        each.take(0, 3)
    rate.take(pause_ns, amount)
    rate.give_back(amount)
    assert rate.wait_ns(pause_ns, 5) == untouched.wait_ns(pause_ns, 5)
