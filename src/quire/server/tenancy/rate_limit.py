"""A rate limit as a pure state machine: the generic cell rate algorithm in the form of virtual
scheduling (ITU-T I.371, annex A), which equals a token bucket that holds one period's amount.

What was taken moves one time forward, at which the account is even; what it may be ahead of now is
one period. Times are whole nanoseconds times the limit, so that nothing is ever rounded.
"""

from dataclasses import dataclass

PERIOD_NS = 60 * 10**9
"""Limits are amounts a minute."""


@dataclass(slots=True)
class RateLimit:
    """A limit of `limit` a minute, of which all may be taken at once. In any time at most what it
    lets through, and `limit` more, is taken. Times are nanoseconds that never go back."""

    limit: int
    _even_at: int = 0  # in nanoseconds times `limit`

    def wait_ns(self, now_ns: int, amount: int) -> int:
        """Return in how many nanoseconds `amount` may be taken if nothing else is until then, 0 if
        it may be now. Of an amount above the limit: when the whole limit may be."""
        within = self._ahead(now_ns) + min(amount, self.limit) * PERIOD_NS
        over = within - PERIOD_NS * self.limit
        return max(-(-over // self.limit), 0)

    def take(self, now_ns: int, amount: int) -> None:
        """Take an amount, whether or not it may be: the account may come to be in debt."""
        self._even_at = now_ns * self.limit + self._ahead(now_ns) + amount * PERIOD_NS

    def give_back(self, amount: int) -> None:
        """Undo that an amount was taken."""
        self._even_at -= amount * PERIOD_NS

    def left(self, now_ns: int) -> int:
        """Return how much may be taken now; 0 in debt."""
        return max((PERIOD_NS * self.limit - self._ahead(now_ns)) // PERIOD_NS, 0)

    def reset_ns(self, now_ns: int) -> int:
        """Return in how many nanoseconds all of the limit may be taken."""
        return -(-self._ahead(now_ns) // self.limit)

    def _ahead(self, now_ns: int) -> int:
        return max(self._even_at - now_ns * self.limit, 0)
