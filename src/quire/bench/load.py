"""A closed loop of clients, and percentiles of what it took."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from quire.bench.exchange import Address, Exchange, exchange


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds; None where nothing was timed."""

    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """What came back, in the order in which it ended, and what it took the client."""

    exchanges: tuple[Exchange, ...]
    wall_s: float
    client_cpu_s: float


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between the nearest ranks; None of an empty sequence."""
    if not values:
        return None
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def percentiles(seconds: Sequence[float]) -> Percentiles:
    milliseconds = [each * 1000 for each in seconds]
    return Percentiles(*(percentile(milliseconds, percent) for percent in (50, 90, 99)))


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Each of `concurrency` clients sends its next request when its last one has ended."""

    address: Address
    concurrency: int
    timeout_s: float
    on_end: Callable[[], object] = lambda: None

    def run(self, requests: Sequence[bytes]) -> Load:
        """Requests still open after timeout_s are recorded as failed."""
        gc.collect()
        gc.disable()
        cpu_s, start_s = time.process_time(), time.perf_counter()
        try:
            exchanges = asyncio.run(self._run(requests, start_s + self.timeout_s))
            wall_s = time.perf_counter() - start_s
            return Load(tuple(exchanges), wall_s, time.process_time() - cpu_s)
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
