"""Processes that watch a server during an attack: one asks `/livez` and reads the server's memory,
one reads streams.

`python -m tests.e2e.hostile.watch livez|stream HOST PORT PID`. A line on standard input is answered
with a line of JSON: what was seen since the line before.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import psutil

from tests.e2e.hostile.target import OTHER_KEY, Target

PROBE_EVERY_S = 0.05
PATIENCE_S = 150.0
MEMORY_EVERY_S = 0.05
ROOT = Path(__file__).parents[3]
STREAM = {"max_tokens": 900, "ignore_eos": True, "stream": True}
Seen: TypeAlias = Mapping[str, float]


class LivezProbe:
    """Asks `/livez` on a connection that stays open and on a fresh one, by turns. What the server
    had to do itself is told apart from waits for a core, which on a busy machine say nothing of it.
    """

    def __init__(self, host: str, port: int, pid: int) -> None:
        self._address = (host, port)
        self._schedules = (Path(f"/proc/{pid}/schedstat"), Path("/proc/thread-self/schedstat"))
        self._kept = self._connection()
        self._longest_s, self._longest_own_s, self._num, self._num_failed = 0.0, 0.0, 0, 0
        self._asked_s: float | None = None

    def run(self) -> None:
        while True:
            due_s = time.monotonic() + PROBE_EVERY_S
            fresh = self._connection()
            self._ask(fresh)
            fresh.close()
            time.sleep(max(due_s - time.monotonic(), 0))
            self._ask(self._kept)
            time.sleep(max(due_s + PROBE_EVERY_S - time.monotonic(), 0))

    def seen(self) -> Seen:
        """An answer that has not come yet counts by the time it has been waited for."""
        waits_s = 0.0 if self._asked_s is None else time.monotonic() - self._asked_s
        seen = {
            "longest_s": max(self._longest_s, waits_s),
            "longest_own_s": max(self._longest_own_s, waits_s),
            "num": self._num,
            "num_failed": self._num_failed,
        }
        self._longest_s, self._longest_own_s, self._num, self._num_failed = 0.0, 0.0, 0, 0
        return seen

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self._address, timeout=PATIENCE_S)

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        ran_s, queued_s = self._scheduled()
        began_s = self._asked_s = time.monotonic()
        try:
            connection.request("GET", "/livez")
            reply = connection.getresponse()
            reply.read()
            self._num_failed += reply.status != 200
        except (OSError, http.client.HTTPException):
            connection.close()
            self._num_failed += 1
        self._asked_s = None
        took_s = time.monotonic() - began_s
        self._longest_s = max(self._longest_s, took_s)
        ran_s, queued_s = (
            now - then for now, then in zip(self._scheduled(), (ran_s, queued_s), strict=True)
        )
        self._longest_own_s = max(self._longest_own_s, ran_s, took_s - queued_s)
        self._num += 1

    def _scheduled(self) -> tuple[float, float]:
        """Return how long the server's loop ran, and how long it and this thread have waited for a
        core."""
        try:
            server, own = (path.read_text().split() for path in self._schedules)
        except OSError:  # the server has ended
            return 0.0, 0.0
        return int(server[0]) / 1e9, (int(server[1]) + int(own[1])) / 1e9


class MemoryWatch:
    """Watches the resident bytes of a process and all its children together."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._peak = 0

    def run(self) -> None:
        while True:
            self._peak = max(self._peak, self.now())
            time.sleep(MEMORY_EVERY_S)

    def now(self) -> int:
        try:
            tree = [self._process, *self._process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return 0
        return sum(map(_resident, tree))

    def seen(self) -> Seen:
        now = self.now()
        peak, self._peak = max(self._peak, now), 0
        return {"memory": now, "memory_peak": peak}


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


class StreamReader:
    """Reads one streaming completion after the other, and keeps the gaps between their tokens."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._gaps_s: list[float] = []
        self._num_failed = 0
        self._last_s: float | None = None

    def run(self) -> None:
        for number in range(1 << 30):
            try:
                self._read(number)
            except (OSError, http.client.HTTPException):
                self._num_failed += 1
                time.sleep(0.1)

    def _read(self, number: int) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=PATIENCE_S)
        body = json.dumps({"prompt": f"Scene {number}"} | STREAM)
        connection.request(
            "POST", "/v1/completions", body, {"Authorization": f"Bearer {OTHER_KEY}"}
        )
        reply = connection.getresponse()
        is_broken = reply.status != 200
        for line in reply:
            if line.startswith(b"data: {"):
                is_broken = is_broken or line.startswith(b'data: {"error"')
                now = time.monotonic()
                if self._last_s is not None:
                    self._gaps_s.append(now - self._last_s)
                self._last_s = now
        self._last_s = None
        connection.close()
        if is_broken:
            self._num_failed += 1
            time.sleep(0.1)

    def seen(self) -> Seen:
        """A token that has not come yet counts by the time it has been waited for."""
        last_s = self._last_s
        gaps_s, self._gaps_s = self._gaps_s, []
        waits_s = 0.0 if last_s is None else time.monotonic() - last_s
        return {
            "num": len(gaps_s),
            "mean_s": (sum(gaps_s) + waits_s) / max(len(gaps_s), 1),
            "longest_s": max([waits_s, *gaps_s]),
            "num_failed": self._take_failed(),
        }

    def _take_failed(self) -> int:
        num_failed, self._num_failed = self._num_failed, 0
        return num_failed


class Watch:
    """A watching process, as its parent asks it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def seen(self) -> dict[str, float]:
        """Return what it saw since it was asked last."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        seen = json.loads(self._process.stdout.readline())
        return {str(name): float(value) for name, value in seen.items()}


@contextmanager
def watching(kind: str, target: Target) -> Iterator[Watch]:
    module = "tests.e2e.hostile.watch"
    arguments = [kind, target.host, str(target.port), str(target.server_pid)]
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            yield Watch(process)
        finally:
            process.kill()


def main(kind: str, host: str, port: str, pid: str) -> None:
    watches: list[LivezProbe | MemoryWatch | StreamReader] = (
        [StreamReader(host, int(port))]
        if kind == "stream"
        else [LivezProbe(host, int(port), int(pid)), MemoryWatch(int(pid))]
    )
    runs: list[Callable[[], None]] = [watch.run for watch in watches]
    for run in runs:
        threading.Thread(target=run, daemon=True).start()
    for _ in sys.stdin:
        seen: dict[str, float] = {}
        for watch in watches:
            seen |= watch.seen()
        print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
