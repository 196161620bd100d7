"""Puts in order what one replica tells a front end: items come on several calls, each of which may
be read a little sooner or later than another.
"""

from collections.abc import Iterator

from quire.engines.ray.messages import ReplicaUpdate


class Inbox:
    """Puts numbered items in order."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, ReplicaUpdate] = {}

    def take(self, told: ReplicaUpdate) -> Iterator[ReplicaUpdate]:
        """Take an item; yield all whose turn it is then."""
        self._early[told.number] = told
        while (due := self._early.pop(self._next, None)) is not None:
            self._next += 1
            yield due
