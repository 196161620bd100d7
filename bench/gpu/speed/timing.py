"""Times calls by the device's own clock, many of them in one CUDA graph: launched by the host one
after the other, short calls would show how fast the host launches.

What a call reads must come from memory, as it does in a step, and not from the L2 cache: so calls
take turns over several buffers, `num_buffers` of them. On a CPU the calls are timed as they are.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch

CACHE_TIMES = 4
"""Between two uses of a buffer others are read, of so many times the cache's bytes."""
REPLAYS = 7
REPLAY_S, MAX_CALLS = 0.02, 400
"""A replay takes about so long, over at most so many calls."""

Call: TypeAlias = Callable[[], object]


class Timing(NamedTuple):
    """The seconds of one call: the median, the least and the most of some repeats."""

    median_s: float
    least_s: float
    most_s: float

    @property
    def spread(self) -> float:
        """The slowest repeat over the fastest, less 1."""
        return self.most_s / self.least_s - 1

    def over(self, num_calls: int) -> "Timing":
        """Return the timing of one of so many calls that were timed together."""
        return Timing(*(each_s / num_calls for each_s in self))

    @classmethod
    def of(cls, taken_s: Sequence[float]) -> "Timing":
        return cls(statistics.median(taken_s), min(taken_s), max(taken_s))


def num_buffers(num_bytes: int, cache_bytes: int) -> int:
    """Return over how many buffers of `num_bytes` calls take turns, so that none is found in a
    cache: at least 2."""
    return 1 + max(1, -(-CACHE_TIMES * cache_bytes // max(num_bytes, 1)))


def cache_bytes(device: torch.device) -> int:
    """Return the size of the device's L2 cache; of a CPU none, since its figures mean nothing."""
    if device.type == "cpu":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def elapsed_s(device: torch.device, act: Call) -> float:
    """Return the seconds that the device took for what `act` launches on the current stream."""
    if device.type == "cpu":
        began_s = time.perf_counter()
        act()
        return time.perf_counter() - began_s
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    act()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def time_launched(device: torch.device, call: Call, num_repeats: int = REPLAYS) -> Timing:
    """Time a call that the host launches each time: for what takes milliseconds."""
    call()
    return Timing.of([elapsed_s(device, call) for _ in range(num_repeats)])


def time_captured(device: torch.device, calls: Sequence[Call]) -> Timing:
    """Time calls that do the same over different buffers, captured in one CUDA graph."""
    if device.type == "cpu":
        return Timing.of([elapsed_s(device, call) for call in calls])
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        _run(calls)  # kernels are compiled
        call_s = elapsed_s(device, lambda: _run(calls)) / len(calls)
        num_rounds = rounds(call_s, len(calls))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(num_rounds):
                _run(calls)
        graph.replay()
        taken_s = [elapsed_s(device, graph.replay) for _ in range(REPLAYS)]
    return Timing.of([each_s / (num_rounds * len(calls)) for each_s in taken_s])


def rounds(call_s: float, num_calls: int) -> int:
    """Return how often `num_calls` of `call_s` go into one graph: at least once."""
    wanted = min(REPLAY_S / max(call_s, 1e-9), MAX_CALLS)
    return max(1, round(wanted / num_calls))


def _run(calls: Sequence[Call]) -> None:
    for call in calls:
        call()
