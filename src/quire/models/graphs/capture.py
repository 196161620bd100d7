"""Captures the launches of steps as graphs, so that the process serves on whatever fails.

What asks the device, or takes numbers from the host, is found in a run before any capture begins.
Where a capture fails all the same, all that it began is ended and given back. Older torch leaves
that to its caller: a capture that could not be ended was still underway for the allocator
(pytorch 180395), and kept its memory (pytorch 190348). A capture may be cut into several graphs,
with something between them that is no part of any: all of them succeed, or all are undone. Ranks
that share a model capture the same steps, their collectives among the launches.
"""

import gc
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import NamedTuple, Protocol

import torch

from quire.cache.sizing import TooLittleMemory
from quire.models.graphs.agreement import CaptureOutcome, RefusedByRank, worst_outcome
from quire.models.parallel.ranks import Ranks

logger = logging.getLogger(__name__)

Launch = Callable[[], None]
Compute = Callable[[], object]
Cut = Callable[[Launch], None]
"""Ends a graph and begins the next. A replay makes the given launch between the two; the capture
does not."""
CutCompute = Callable[[Cut], object]


class Graph(Protocol):
    """The launches between `begin` and `end`."""

    def begin(self) -> None:
        """Begin a capture on the current stream. Raises RuntimeError."""

    def end(self) -> None:
        """End the capture. Raises RuntimeError if one of its launches was not allowed."""

    def replay(self) -> None:
        """Launch the captured graph over the same tensors."""

    def reset(self) -> None:
        """Drop the captured graph. Some versions of torch then leave the pool, others do not if the
        capture failed."""


class GraphPool(Protocol):
    """The memory shared by graphs, of which only one runs at a time."""

    def new_graph(self) -> Graph: ...

    def num_users(self) -> int:
        """Return how many captures have begun in the pool and not left it."""

    def end_allocation(self) -> None:
        """Allocate in the pool no more, if a capture that failed still does."""

    def release(self) -> None:
        """Take one user from the pool."""

    def drop(self) -> None:
        """Give up the pool, which has no users."""


class GraphDevice(Protocol):
    """A device whose launches can be captured."""

    @property
    def ranks(self) -> Ranks | None:
        """The ranks that capture the same, this one among them; None where there is one alone."""

    def new_pool(self) -> GraphPool: ...

    def side_stream(self) -> AbstractContextManager[None]:
        """Make the one stream that all is captured on current, and then the one before again."""

    def refuse_crossings(self) -> AbstractContextManager[None]:
        """Raise RuntimeError where something waits for the device or comes from the host."""

    def keep_random_state(self) -> Launch:
        """Return a function that restores the device's current random state."""

    def free_cached(self) -> None:
        """Wait for the device, and give back the memory that torch keeps but does not use. Raises
        RuntimeError while a capture is underway."""


class GraphRecorder:
    """Captures graphs of one device in one pool."""

    def __init__(self, device: GraphDevice) -> None:
        self._device = device
        self._pool = device.new_pool()
        self._graphs: list[Graph] = []

    @property
    def ranks(self) -> Ranks | None:
        """The ranks of its device."""
        return self._device.ranks

    def check(self, compute: Compute) -> None:
        """Run `compute` once to make kernels and workspaces, and once to see that it can be
        captured. Raises RuntimeError if it cannot."""
        with self._device.side_stream():
            compute()
            with self._device.refuse_crossings():
                compute()

    def capture(self, compute: Compute) -> Launch:
        """Capture the checked `compute` as one graph, and return its replay.

        Raises RuntimeError where that fails; graphs captured before are as they were.
        """
        return self.capture_pieces(lambda cut: compute()).replay

    def capture_pieces(self, compute: CutCompute) -> "Recording":
        """Capture `compute`, which was checked, as graphs that end where it cuts, at least one.

        Raises RuntimeError where that fails; graphs captured before are as they were.
        """
        self._device.free_cached()
        capture, num_users = _Capture(self._pool), self._pool.num_users()
        restore_random_state = self._device.keep_random_state()
        try:
            with self._device.side_stream(), _no_collection():
                capture.run(compute)
        except BaseException:
            self._undo(capture.graphs, num_users)
            restore_random_state()
            raise
        self._graphs += capture.graphs
        return Recording(tuple(capture.launches), len(capture.graphs))

    def forget(self) -> None:
        """Forget all graphs and give back their memory. Replaying one is an error afterwards."""
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._pool.drop()
        try:
            self._device.free_cached()
        except RuntimeError as error:
            logger.warning("the memory of graphs is not given back: %s", error)

    def _undo(self, graphs: Sequence[Graph], num_users: int) -> None:
        """Undo the parts of a failed capture that this version of torch leaves, beginning with the
        failed graph. A user too many taken from the pool would be fatal, so that they are counted.
        """
        for graph in reversed(graphs):
            with suppress(RuntimeError):
                graph.reset()
        self._pool.end_allocation()
        for _ in range(self._pool.num_users() - num_users):
            self._pool.release()


class Recording(NamedTuple):
    """A captured step: its graphs are replayed by `launches`, with what is launched between."""

    launches: tuple[Launch, ...]
    num_graphs: int

    def replay(self) -> None:
        for launch in self.launches:
            launch()


def capture_sizes(
    recorder: GraphRecorder,
    sizes: Sequence[int],
    run: Callable[[int, Cut], None],
    on_progress: Callable[[int, int], None],
) -> dict[int, Recording]:
    """Capture `run` of each size in tokens, the largest first: the memory that it takes suffices
    for the others. No capture begins before all sizes are checked.

    Returns what replays each size that memory allows, on all ranks. Raises RuntimeError, with
    nothing captured, where a size cannot be captured for another reason; TooLittleMemory where one
    of several ranks cannot check a step that the others compute; and RankLost.
    """
    ranks, falling = recorder.ranks, sorted(sizes, reverse=True)
    recordings: dict[int, Recording] = {}

    def check(size: int) -> None:
        with _keeping_in_step(ranks, size):
            recorder.check(partial(run, size, _do_not_cut))

    def capture(size: int) -> None:
        recordings[size] = recorder.capture_pieces(partial(run, size))

    def report(number: int) -> None:
        on_progress(number, 2 * len(falling))

    try:
        checked = _that_fit(ranks, falling, check, report)
        captured = _that_fit(ranks, checked, capture, lambda done: report(len(falling) + done))
    except BaseException:
        recorder.forget()
        raise
    if not captured:
        recorder.forget()
    report(2 * len(falling))
    return {size: recordings[size] for size in captured}


@contextmanager
def _keeping_in_step(ranks: Ranks | None, size: int) -> Iterator[None]:
    """Raise TooLittleMemory where one of several ranks has no memory within a step: the others wait
    in it for this one, and no rank can go on."""
    try:
        yield
    except RuntimeError as error:
        if ranks is None or not is_out_of_memory(error):
            raise
        raise TooLittleMemory(
            f"rank {ranks.rank} of {ranks.size} has no memory for a step of {size} tokens before "
            f"it is captured ({error}): pass a smaller --gpu-memory-utilization, or --enforce-eager"
        ) from error


def _do_not_cut(between: Launch) -> None:
    """Replace a cut without a capture."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether torch, or the driver when it makes a graph, lacks device memory."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


def _that_fit(
    ranks: Ranks | None,
    falling: Sequence[int],
    act: Callable[[int], None],
    report: Callable[[int], None],
) -> list[int]:
    """Return the sizes for which there is memory to `act`, on all ranks. Where there is none for
    the largest, one of at most half the size is next; none for a smaller one after that, it ends
    there."""
    done: list[int] = []
    largest = falling[0] if falling else 0
    for number, size in enumerate(falling):
        report(number)
        if size > largest:
            continue
        if _fits(ranks, size, act):
            done.append(size)
        elif done:
            break
        else:
            largest = size // 2
    return done


def _fits(ranks: Ranks | None, size: int, act: Callable[[int], None]) -> bool:
    """Return whether all ranks had the memory to `act`. Raises RuntimeError if one failed
    otherwise."""
    error = _error_of(partial(act, size))
    outcome = worst_outcome(ranks, _outcome_of(error))
    if outcome is CaptureOutcome.REFUSED:
        raise RefusedByRank if error is None or is_out_of_memory(error) else error
    if outcome is CaptureOutcome.NO_MEMORY:
        logger.warning(
            "no memory to capture a step of %d tokens: %s", size, error or "on another rank"
        )
    return outcome is CaptureOutcome.DONE


def _error_of(act: Launch) -> RuntimeError | None:
    try:
        act()
    except RuntimeError as error:
        traceback.clear_frames(error.__traceback__)  # they keep the tensors of the step
        return error
    return None


def _outcome_of(error: RuntimeError | None) -> CaptureOutcome:
    if error is None:
        return CaptureOutcome.DONE
    return CaptureOutcome.NO_MEMORY if is_out_of_memory(error) else CaptureOutcome.REFUSED


class _Capture:
    """A capture under way. `launches` are the replays of the `graphs` that are whole, with what is
    launched between them."""

    def __init__(self, pool: GraphPool) -> None:
        self._pool = pool
        self._open: Graph | None = None
        self.graphs: list[Graph] = []
        self.launches: list[Launch] = []

    def run(self, compute: CutCompute) -> None:
        """Capture `compute`. Its exception is raised, not the one from ending the capture."""
        self._begin()
        try:
            compute(self._cut)
        except BaseException:
            with suppress(RuntimeError):
                self._end()
            raise
        self._end()

    def _cut(self, between: Launch) -> None:
        self._end()
        self.launches.append(between)
        self._begin()

    def _begin(self) -> None:
        graph = self._pool.new_graph()
        self.graphs.append(graph)
        graph.begin()
        self._open = graph

    def _end(self) -> None:
        """End the graph that is begun, if one is: a cut may have failed between two."""
        graph, self._open = self._open, None
        if graph is not None:
            graph.end()
            self.launches.append(graph.replay)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage: freeing another pool ends the process while a capture is underway."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
