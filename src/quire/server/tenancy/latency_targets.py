"""The latencies that a request, its key or the server aims at."""

from typing import NamedTuple


class LatencyTargets(NamedTuple):
    """Milliseconds to the first token of a request, and between its tokens; None for no target."""

    ttft_ms: float | None = None
    itl_ms: float | None = None

    def or_else(self, other: "LatencyTargets") -> "LatencyTargets":
        """Return these targets, with those of `other` where there are none."""
        return LatencyTargets(
            other.ttft_ms if self.ttft_ms is None else self.ttft_ms,
            other.itl_ms if self.itl_ms is None else self.itl_ms,
        )


NO_TARGETS = LatencyTargets()
