"""A histogram of one series, written from the event loop only: no lock, a bisection per value."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts values by `bounds`, inclusive upper bounds; values above them all are counted too."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    @property
    def total(self) -> float:
        return self._total

    def cumulative(self) -> list[tuple[float, int]]:
        """Return each bound with the number of values up to it; infinity comes last."""
        below, rows = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            below += count
            rows.append((bound, below))
        return rows

    def exposed(self) -> list[tuple[str, float]]:
        """Return the same with bounds as Prometheus' text format writes them."""
        return [
            ("+Inf" if bound == float("inf") else str(bound), float(num))
            for bound, num in self.cumulative()
        ]
