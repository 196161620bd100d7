"""A device whose streams do their work whenever they are let, in any order that waits allow."""

from collections.abc import Callable
from dataclasses import dataclass, field

from quire.models.kv.streams import Mark


@dataclass
class Clock:
    """Counts the pieces of work that were done, a second each."""

    seconds: int = 0


@dataclass
class LateStream:
    """A stream that advances by a piece when it is told.

    pending: work, or marks to wait for. ended_s: when each piece that is done was done.
    """

    clock: Clock
    pending: list[Callable[[], object] | Mark] = field(default_factory=list)
    ended_s: list[int] = field(default_factory=list)

    def launch(self, work: Callable[[], object]) -> None:
        self.pending.append(work)

    def wait(self, mark: Mark) -> None:
        self.pending.append(mark)

    def mark(self) -> Mark:
        return LateMark(self, len(self.pending), self.clock.seconds)

    @property
    def is_done(self) -> bool:
        return len(self.ended_s) == len(self.pending)

    def advance(self) -> bool:
        """Do the next piece; return False if there is none, or it must wait."""
        if self.is_done:
            return False
        piece = self.pending[len(self.ended_s)]
        if isinstance(piece, LateMark):
            if not piece.is_reached:
                return False
        else:
            assert callable(piece)
            piece()
            self.clock.seconds += 1
        self.ended_s.append(self.clock.seconds)
        return True


@dataclass(frozen=True)
class LateMark:
    stream: LateStream
    end: int
    made_s: int

    @property
    def is_reached(self) -> bool:
        return self.end <= len(self.stream.ended_s)

    @property
    def time_s(self) -> int:
        assert self.is_reached
        return max([self.made_s, *self.stream.ended_s[: self.end][-1:]])

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, LateMark)
        return float(self.time_s - earlier.time_s)


def advance(streams: list[LateStream], order: list[int]) -> None:
    """Let the streams of these indices advance, one piece each, where they can."""
    for index in order:
        streams[index].advance()


def finish(streams: list[LateStream], order: list[int]) -> None:
    """Let all streams do what is left: always the first in `order` that can."""
    while any([streams[index].advance() for index in order]):
        pass
    assert all(stream.is_done for stream in streams), "a stream waits for what never comes"


@dataclass(frozen=True)
class PresentStream:
    """The stream of what computes at once: others advance only when it waits for them, so that what
    they do is done as late as may be."""

    others: list[LateStream]

    def launch(self, work: Callable[[], object]) -> None:
        work()

    def wait(self, mark: Mark) -> None:
        while not mark.is_reached:
            assert any([stream.advance() for stream in self.others])

    def mark(self) -> Mark:
        clock = self.others[0].clock
        return LateMark(LateStream(clock), 0, clock.seconds)
