"""The end of rank 0 to the ranks that follow it: it tells them each call of the model, and a thread
for each of them sees that it is lost.
"""

import logging
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TypeVar

import msgspec

from quire.engine.channel import Channel, ChannelClosed
from quire.engine.failure_kind import FailureKind, RanksFailed
from quire.engine.messages import EngineFailure
from quire.engine.ranks.messages import FromFollower, RankLoaded, RankMemory, ToFollower
from quire.engine.ranks.processes import StartedRank

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", RankLoaded, RankMemory)

SAME_ERROR_S = 1.0
"""Seconds that an error of a follower waits, because rank 0 may report the same one."""
LOSS_S = 2.0
"""Seconds that a failed call in rank 0 waits for the reason, which may be a lost rank."""
END_S = 5.0
"""Seconds after which a follower that has failed or closed its socket is killed."""
CLOSE_S = 0.5
"""Seconds after which a terminating follower is killed, because it may wait for this rank."""
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Leader:
    """Rank 0's end of all followers.

    `on_lost` is called, in a thread, when one of them has failed or ended: the process has to end
    then, and may at once, since this rank may wait for ever for the one that is lost. Without it
    the next call raises RanksFailed.
    """

    def __init__(
        self, started: Sequence[StartedRank], on_lost: Callable[[EngineFailure], None] | None = None
    ) -> None:
        self._started = started
        self._channels = [Channel(each.socket) for each in started]
        self._on_lost = on_lost
        self._answers: list[SimpleQueue[RankLoaded | RankMemory | EngineFailure]] = [
            SimpleQueue() for _ in started
        ]
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._has_lost = threading.Event()
        self._lost: EngineFailure | None = None
        self._watching = [
            threading.Thread(
                target=self._watch, args=(index,), daemon=True, name=f"rank {each.rank}"
            )
            for index, each in enumerate(started)
        ]
        for thread in self._watching:
            thread.start()

    @property
    def num_ranks(self) -> int:
        """The number of ranks, rank 0 among them."""
        return len(self._started) + 1

    def tell(self, message: ToFollower) -> None:
        """Send a call to all followers. Raises ChannelClosed."""
        for channel in self._channels:
            channel.send(message)

    def answers(self, kind: type[Answer]) -> list[Answer]:
        """Wait for the answer of each follower. Raises RanksFailed where one is lost."""
        found: list[Answer] = []
        for answers in self._answers:
            answer = answers.get()
            if isinstance(answer, EngineFailure):
                answers.put(answer)
                raise RanksFailed(answer.message)
            assert isinstance(answer, kind), answer
            found.append(answer)
        return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make a call that all ranks make: after an error in any of them they may be out of step.
        Raises RanksFailed, with the rank and its error."""
        try:
            yield
        except Exception as error:
            self.wait_for_loss()
            if self._lost is not None:
                raise RanksFailed(self._lost.message) from error
            told = f"{type(error).__name__}: {error}"
            raise RanksFailed(f"rank 0 of {self.num_ranks}: {told}") from error

    def wait_for_loss(self) -> None:
        """Wait for the reason of an error that the loss of another rank may have brought about."""
        self._has_lost.wait(LOSS_S)

    def close(self) -> None:
        """End all followers."""
        with self._lock:
            self._closing.set()
        for each in self._started:
            with suppress(OSError):
                each.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._watching:
            thread.join()
        for each in self._started:
            each.socket.close()

    def _watch(self, index: int) -> None:
        """Receive a follower's messages until it ends, then report its end."""
        started = self._started[index]
        failed = self._receive(index)
        if failed is not None:
            self._closing.wait(SAME_ERROR_S)
        code = _ended(started, CLOSE_S if self._closing.is_set() else END_S)
        self._lose(failed or EngineFailure(*_end_of(code)), started.rank)

    def _receive(self, index: int) -> EngineFailure | None:
        """Hand on the answers of a follower until its socket closes or it has failed."""
        decoder = msgspec.msgpack.Decoder[FromFollower](RankLoaded | RankMemory | EngineFailure)
        try:
            while True:
                for body in self._channels[index].receive(wait=True):
                    message = decoder.decode(body)
                    if isinstance(message, EngineFailure):
                        return message
                    self._answers[index].put(message)
        except ChannelClosed:
            return None

    def _lose(self, failed: EngineFailure, rank: int) -> None:
        with self._lock:
            if self._closing.is_set() or self._lost is not None:
                return
            told = f"rank {rank} of {self.num_ranks}: {failed.message}"
            self._lost = EngineFailure(told, failed.kind)
        logger.error("%s", told)
        for answers in self._answers:
            answers.put(self._lost)
        self._has_lost.set()
        if self._on_lost is not None:
            self._on_lost(self._lost)


def _ended(started: StartedRank, patience_s: float) -> int:
    """Return the exit code of a follower, which is killed if it takes too long."""
    try:
        return started.process.wait(patience_s)
    except subprocess.TimeoutExpired:
        started.process.kill()
        return started.process.wait()


def _end_of(code: int) -> tuple[str, FailureKind]:
    """Return the meaning of an exit code, and its kind of failure."""
    if code >= 0:
        return f"the process has ended with exit code {code}", FailureKind.OTHER
    name = signal.Signals(-code).name
    kind = FailureKind.RANK_KILLED if -code in KILLS else FailureKind.OTHER
    return f"the process was ended by {name}", kind
