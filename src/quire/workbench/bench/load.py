"""Runs a closed loop of clients, and computes percentiles of its times."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from quire.workbench.bench.exchange import Exchange, ServerAddress, exchange


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds; None where nothing was timed."""

    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The exchanges of a load, in the order in which they ended, and the seconds that they took."""

    exchanges: tuple[Exchange, ...]
    wall_s: float
    client_cpu_s: float


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile by linear interpolation between the nearest ranks; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """Return the percentiles of seconds, in milliseconds."""
    milliseconds = [each * 1000 for each in seconds]
    return Percentiles(*(percentile(milliseconds, percent) for percent in (50, 90, 99)))


@dataclass(frozen=True, slots=True)
class ClosedLoopLoad:
    """A load in which each of `concurrency` clients sends its next request when its last has
    ended."""

    address: ServerAddress
    concurrency: int
    timeout_s: float
    on_end: Callable[[], object] = lambda: None

    def run(self, requests: Sequence[bytes]) -> LoadOutcome:
        """Send all requests; those still open after `timeout_s` are recorded as failed."""
        gc.collect()
        gc.disable()
        cpu_s, start_s = time.process_time(), time.perf_counter()
        try:
            exchanges = asyncio.run(self._run(requests, start_s + self.timeout_s))
            wall_s = time.perf_counter() - start_s
            return LoadOutcome(tuple(exchanges), wall_s, time.process_time() - cpu_s)
        finally:
            gc.enable()

    async def _run(self, requests: Sequence[bytes], deadline_s: float) -> list[Exchange]:
        waiting: Iterator[bytes] = iter(requests)
        recorded: list[Exchange] = []

        async def client() -> None:
            for request in waiting:
                recorded.append(await exchange(self.address, request, deadline_s))
                self.on_end()

        async with asyncio.TaskGroup() as clients:
            for _ in range(self.concurrency):
                clients.create_task(client())
        return recorded
