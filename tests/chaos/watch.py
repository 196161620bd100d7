"""A thread that looks at a server all the time: is it alive, and do its counters only grow?"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.chaos.metrics import Metrics, gone_back
from tests.chaos.subject import Subject

EVERY_S = 0.1
MOST_TOLD = 5


class Watch:
    """Breaches that were seen so far, a few of each kind."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._ends = threading.Event()
        self._last: Metrics | None = None
        self.num_looks = 0
        self.breaches: list[str] = []

    def run(self) -> None:
        while not self._ends.wait(EVERY_S):
            self.look()

    def look(self) -> None:
        self.num_looks += 1
        status = self._subject.status("/livez")
        if status != 200:
            self._tell(f"/livez: {status}")
        try:
            now = self._subject.metrics()
        except httpx.HTTPError as error:
            self._tell(f"/metrics: {error!r}")
            return
        for breach in gone_back(self._last or now, now):
            self._tell(breach)
        self._last = now

    def end(self) -> None:
        self._ends.set()

    def _tell(self, breach: str) -> None:
        if len(self.breaches) < MOST_TOLD:
            self.breaches.append(breach)


@contextmanager
def watching(subject: Subject) -> Iterator[Watch]:
    """Watch during the block, and once more when it ends."""
    watch = Watch(subject)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        thread.join()
        watch.look()
