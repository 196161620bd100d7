"""Capturing CUDA graphs with torch.

CUDA graphs: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from quire.models.graphs.capture import Launch
from quire.models.graphs.crossings import HostTransferDetector, HostTransferError
from quire.models.parallel.ranks import Ranks

OnPool = Callable[[int, tuple[int, int]], None]
"""A function of torch's allocator, of a device's index and a pool's id."""


class CUDADevice:
    """Implements `GraphDevice` for one GPU.

    All graphs are captured on one stream, since torch caches freed memory for each stream
    separately. Only launches of the capturing thread are captured or refused: NCCL asks the device
    from a thread of its own how far collectives are.
    """

    def __init__(self, device: torch.device, ranks: Ranks | None = None) -> None:
        self.device = device
        self.ranks = ranks
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def new_pool(self) -> "CUDAPool":
        return CUDAPool(self._index)

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        current = torch.cuda.current_stream(self.device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):  # left again also where a capture fails
            yield
        current.wait_stream(self._side)

    @contextmanager
    def refuse_crossings(self) -> Iterator[None]:
        """torch raises where it waits for the device; copies that do not wait, or not as far as
        torch knows, are found by `HostTransferDetector`."""
        before = torch.cuda.get_sync_debug_mode()
        _set_sync_debug_mode(2)
        try:
            with HostTransferDetector("cuda") as crossings:
                yield
        finally:
            _set_sync_debug_mode(before)
        if crossings.places:
            raise HostTransferError(crossings.places[0])

    def keep_random_state(self) -> Launch:
        """A capture that could not be ended leaves the generator's state in that capture; so the
        state is not set back but replaced."""
        generator = torch.cuda.default_generators[self._index]
        state = generator.clone_state()

        def restore() -> None:
            generator.graphsafe_set_state(state)

        return restore

    def free_cached(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()


class CUDAPool:
    """Implements `GraphPool`. Its own reference keeps the pool's memory until `drop`, and makes it
    possible to count those of the graphs."""

    def __init__(self, device_index: int) -> None:
        self._index = device_index
        with torch.cuda.device(device_index):
            self._pool: torch.cuda.MemPool | None = torch.cuda.MemPool()
        self._id = self._pool.id

    def new_graph(self) -> "CUDAGraph":
        return CUDAGraph(self)

    @property
    def id(self) -> tuple[int, int]:
        return self._id

    def num_users(self) -> int:
        return 0 if self._pool is None else self._pool.use_count() - 1

    def end_allocation(self) -> None:
        with suppress(RuntimeError):  # torch has ended it
            _call("_cuda_endAllocateToPool", self._index, self._id)

    def release(self) -> None:
        _call("_cuda_releasePool", self._index, self._id)

    def drop(self) -> None:
        self._pool = None


class CUDAGraph:
    """Implements `Graph`, and keeps its pool."""

    def __init__(self, pool: CUDAPool) -> None:
        self._pool = pool
        self._graph = torch.cuda.CUDAGraph()

    def begin(self) -> None:
        self._graph.capture_begin(pool=self._pool.id, capture_error_mode="thread_local")  # type: ignore[arg-type]

    def end(self) -> None:
        self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()

    def reset(self) -> None:
        self._graph.reset()


def _call(name: str, device_index: int, pool_id: tuple[int, int]) -> None:
    """Call a private function of torch. A torch that has it no more is newer than 2.13, and cleans
    up by itself."""
    function: OnPool | None = getattr(torch._C, name, None)
    if function is not None:
        function(device_index, pool_id)


def _set_sync_debug_mode(mode: int) -> None:
    with warnings.catch_warnings():  # torch says that it does not detect all
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)
