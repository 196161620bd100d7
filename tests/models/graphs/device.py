"""A stand-in for a GPU that captures: its graphs are tapes of the operations on tensors, and its
allocator raises where torch's would, or would end the process."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch.utils._python_dispatch import _disable_current_modes

from quire.models.graphs.capture import Launch
from quire.models.graphs.crossings import HostTransferError
from quire.models.parallel.ranks import Ranks
from tests.models.tape import Tape


def ignore_progress(done: int, total: int) -> None:
    pass


class Torch(Enum):
    """The versions of torch, by what each cleans up itself after a capture that failed."""

    NOTHING = "before pytorch 180395"
    ALLOCATION = "since pytorch 180395"
    ALL = "since pytorch 190348"


class Fault(Enum):
    """The faults that a capture meets."""

    WAIT = "an operation that waits for the device, seen by the check"
    CROSSING = "a number that passes between host and device, found at the end of the check"
    UNSEEN_WAIT = "an operation that waits for the device, not seen by the check"
    ASYNC = "an operation that shows when the capture ends"
    BEGIN = "the stream cannot begin a capture"
    END = "the driver cannot end the capture"
    CHECK_MEMORY = "there is no memory for the step that is checked"
    MEMORY = "there is no memory for a launch"
    GRAPH_MEMORY = "there is no memory for the graph"


class Fatal(AssertionError):
    """The process would have ended, or torch's accounts would be wrong from here on."""


@dataclass
class StandInDevice:
    """Implements `GraphDevice`. `fault` is met at the checks or captures whose numbers, from 0 on,
    are in `faulty`.

    log: what was done, in order.
    """

    torch: Torch = Torch.ALL
    fault: Fault | None = None
    faulty: frozenset[int] = frozenset()
    ranks: Ranks | None = None
    log: list[str] = field(default_factory=list)
    stream: str = "main"
    refuses: bool = False
    random_state: str = "free"
    tape: Tape | None = None
    pools: list["StandInPool"] = field(default_factory=list)
    is_broken: bool = False
    on_free: Launch = field(default=lambda: None)
    num_checks: int = 0
    num_graphs: int = 0
    num_replays: int = 0

    def new_pool(self) -> "StandInPool":
        self.pools.append(StandInPool(self))
        return self.pools[-1]

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        before, self.stream = self.stream, "side"
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def refuse_crossings(self) -> Iterator[None]:
        self.refuses = True
        try:
            with Tape().of_step():
                yield
            if self.meets(Fault.CROSSING):
                raise HostTransferError("the step")
        finally:
            self.refuses = False
            self.num_checks += 1

    def keep_random_state(self) -> Launch:
        state = self.random_state

        def restore() -> None:
            self.random_state = state

        return restore

    def free_cached(self) -> None:
        if any(pool.is_allocating for pool in self.pools):
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        self.log.append("free")
        self.on_free()

    def meets(self, *faults: Fault) -> bool:
        number = self.num_checks if self.tape is None and self.refuses else self.num_graphs - 1
        return self.fault in faults and number in self.faulty

    def launch(self, compute: Launch) -> None:
        """Launch what is no operation of torch, as kernels of one's own are."""
        if self.refuses and self.meets(Fault.WAIT):
            raise RuntimeError("called a synchronizing CUDA operation")
        if self.refuses and self.meets(Fault.CHECK_MEMORY):
            raise torch.OutOfMemoryError("CUDA out of memory")
        if self.tape is not None:
            self._meet_faults_of_captures()
            self.tape.launch(compute)
        else:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                compute()

    def _meet_faults_of_captures(self) -> None:
        if self.meets(Fault.ASYNC, Fault.UNSEEN_WAIT):
            self.is_broken = True
        if self.meets(Fault.UNSEEN_WAIT):
            raise RuntimeError("operation not permitted when stream is capturing")
        if self.meets(Fault.MEMORY):
            raise torch.OutOfMemoryError("CUDA out of memory")


@dataclass
class StandInPool:
    device: StandInDevice
    users: int = 0
    is_allocating: bool = False
    is_dropped: bool = False

    def new_graph(self) -> "StandInGraph":
        self.device.num_graphs += 1
        return StandInGraph(self.device, self)

    def num_users(self) -> int:
        return self.users

    def end_allocation(self) -> None:
        self.is_allocating = False

    def release(self) -> None:
        if self.users == 0:
            raise Fatal("uc >= 0 INTERNAL ASSERT FAILED")
        self.users -= 1

    def drop(self) -> None:
        if self.is_allocating:
            raise Fatal("captures_underway.empty() INTERNAL ASSERT FAILED, in a destructor")
        self.is_dropped = True


@dataclass
class StandInGraph:
    device: StandInDevice
    pool: StandInPool
    launches: list[Launch] = field(default_factory=list)
    allocates: bool = False
    is_user: bool = False
    has_ended: bool = False
    recording: AbstractContextManager[None] = field(default_factory=nullcontext)

    def begin(self) -> None:
        device = self.device
        device.log.append("begin")
        if device.stream != "side":
            raise Fatal("graphs must be captured on a stream of their own")
        if self.pool.is_allocating or self.pool.is_dropped:
            raise Fatal("already recording to mempool_id")
        self.pool.is_allocating = self.allocates = self.is_user = True
        self.pool.users += 1
        device.random_state = "capturing"
        if device.meets(Fault.BEGIN):
            raise RuntimeError("operation not permitted: the stream cannot begin a capture")
        device.tape = Tape(defers_collectives=True)
        self.recording = device.tape.of_step()
        self.recording.__enter__()

    def end(self) -> None:
        device = self.device
        device.log.append("end")
        if device.tape is None:
            raise Fatal("a capture ended that had not begun")
        self.recording.__exit__(None, None, None)
        self.launches, device.tape = device.tape.acts, None
        fails, device.is_broken = device.is_broken or device.meets(Fault.END), False
        if not fails or device.torch is not Torch.NOTHING:
            self.pool.is_allocating = self.allocates = False
        if fails:
            raise RuntimeError("operation failed due to a previous error during capture")
        device.random_state = "free"
        self.has_ended = True
        if device.meets(Fault.GRAPH_MEMORY):
            raise RuntimeError("CUDA error: out of memory")

    def replay(self) -> None:
        if not self.has_ended or not self.is_user or self.pool.is_dropped:
            raise Fatal("there is nothing to replay")
        self.device.num_replays += 1
        with torch.inference_mode():
            for launch in self.launches:
                launch()

    def reset(self) -> None:
        self.device.log.append("reset")
        if self.device.torch is Torch.ALL and self.allocates:
            if not self.pool.is_allocating:
                raise Fatal("endAllocatePool: not currently recording to mempool_id")
            self.pool.is_allocating = self.allocates = False
        if self.is_user and (self.has_ended or self.device.torch is Torch.ALL):
            self.pool.release()
            self.is_user = False
