"""A crowd of requests at once against a short queue: who is served, who is told to come again, and
whether what they are told is true: `python -m tests.e2e.overload`.

`obedient` clients come again when `Retry-After` says so, until they are let in; `impatient` ones
ask again and again, and so find out when a retry could be let in. What was said with the first
refusal is compared with the time from there until the request was let in.
"""

import argparse
import asyncio
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.e2e.server_process import MODEL, server_process

REFUSED = (429, 503)
POLL_S = 0.5
WITHIN_S = 300.0
MODES = ("obedient", "impatient")


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many requests at once, each for so many tokens, against a queue of so many."""

    num_requests: int = 500
    num_tokens: int = 64
    max_num_queued_reqs: int = 64
    max_num_seqs: int = 16


@dataclass(slots=True)
class Visit:
    """The answers to one client. `told_s` is the first `Retry-After`, `waited_s` the time from
    there until it was let in; None where it was never refused."""

    statuses: list[int] = field(default_factory=list)
    told_s: float | None = None
    waited_s: float | None = None
    is_complete: bool = False

    @property
    def ratio(self) -> float:
        assert self.told_s is not None and self.waited_s is not None
        return self.told_s / max(self.waited_s, 1e-3)


async def visit(url: str, crowd: Crowd, mode: str, index: int) -> Visit:
    """Ask until the server takes the request, and read its answer to the end."""
    made, refused_s = Visit(), None
    while True:
        reply = await ask(url, crowd, index)
        made.statuses.append(reply.status)
        if reply.status == 200:
            made.waited_s = None if refused_s is None else reply.answered_s - refused_s
            made.is_complete = reply.is_complete(crowd.num_tokens)
            return made
        if reply.status not in REFUSED:
            return made
        told_s = float(reply.headers["retry-after"])
        if refused_s is None:
            refused_s, made.told_s = reply.answered_s, told_s
        await asyncio.sleep(told_s if mode == "obedient" else POLL_S)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; its head came at `answered_s`."""

    status: int
    headers: dict[str, str]
    answered_s: float
    body: bytes

    def is_complete(self, num_tokens: int) -> bool:
        """Whether a stream has all of its tokens, its end, and the end of its last chunk."""
        told = f'"completion_tokens":{num_tokens}'.encode()
        return told in self.body and b"data: [DONE]\n\n\r\n0\r\n\r\n" in self.body


async def ask(url: str, crowd: Crowd, index: int) -> Reply:
    """Ask once, on a connection of its own: a client library for 500 at once costs more than the
    server does."""
    address = urlsplit(url)
    said = {
        "model": MODEL,
        "prompt": f"Number {index} said",
        "max_tokens": crowd.num_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body = json.dumps(said).encode()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {address.netloc}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        answered_s = time.monotonic()
        headers = {
            name.lower(): value for name, _, value in (each.partition(": ") for each in lines)
        }
        return Reply(int(status.split()[1]), headers, answered_s, await reader.read())
    finally:
        writer.close()


async def visits(url: str, crowd: Crowd, mode: str) -> list[Visit]:
    """Let all come at once. Raises TimeoutError where one hangs."""
    async with asyncio.timeout(WITHIN_S):
        return await asyncio.gather(
            *(visit(url, crowd, mode, index) for index in range(crowd.num_requests))
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """The answers to a crowd, by status; the requests that were refused at first; quartiles of
    what they were told, of what they waited, and of the one over the other."""

    mode: str
    statuses: dict[int, int]
    num_incomplete: int
    num_refused: int
    told_s: tuple[float, float, float]
    waited_s: tuple[float, float, float]
    ratio: tuple[float, float, float]
    took_s: float

    @property
    def faults(self) -> list[str]:
        """Return which do not hold of: only 200, 429 and 503; all answers whole; the median of what
        was said within a factor of two of what came."""
        found = []
        if set(self.statuses) - {200, *REFUSED}:
            found.append(f"statuses {self.statuses}")
        if self.num_incomplete:
            found.append(f"{self.num_incomplete} answers are not whole")
        if not 0.5 <= self.ratio[1] <= 2:
            found.append(f"Retry-After is {self.ratio[1]:.2f} of the wait in the median")
        return found

    def row(self) -> str:
        statuses = ", ".join(f"{status} x {num}" for status, num in sorted(self.statuses.items()))
        cells = (
            self.mode,
            statuses,
            str(self.num_incomplete),
            str(self.num_refused),
            *(_quartiles(each) for each in (self.told_s, self.waited_s, self.ratio)),
            f"{self.took_s:.1f} s",
        )
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| clients | answers | not whole | refused | told, s | waited, s | told / waited | all took |\n"
    "|---|---|---|---|---|---|---|---|"
)


def _quartiles(values: tuple[float, float, float]) -> str:
    low, median, high = values
    return f"{median:.2f} ({low:.2f}..{high:.2f})"


def summarised(mode: str, made: Sequence[Visit], took_s: float) -> Summary:
    refused = [each for each in made if each.waited_s is not None]
    statuses = Counter(status for each in made for status in each.statuses)
    return Summary(
        mode,
        dict(statuses),
        sum(not each.is_complete for each in made),
        len(refused),
        _quarters([each.told_s or 0.0 for each in refused]),
        _quarters([each.waited_s or 0.0 for each in refused]),
        _quarters([each.ratio for each in refused]),
        took_s,
    )


def _quarters(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return (math.nan,) * 3
    low, median, high = statistics.quantiles(values, n=4)
    return low, median, high


def overload(crowd: Crowd, mode: str) -> Summary:
    """Return what a crowd was answered by a server of its own."""
    flags = ("--max-num-queued-reqs", str(crowd.max_num_queued_reqs))
    with server_process(*flags, "--max-num-seqs", str(crowd.max_num_seqs)) as server:
        body = {"prompt": "Once upon a time", "max_tokens": 16}
        for _ in range(
            4
        ):  # a server that has never computed anything cannot tell how long it takes
            server.client.post("/v1/completions", json=body).raise_for_status()
        began_s = time.monotonic()
        made = asyncio.run(visits(server.url, crowd, mode))
        took_s = time.monotonic() - began_s
        assert server.client.get("/readyz").status_code == 200
        return summarised(mode, made, took_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--seqs", type=int, default=16)
    given = parser.parse_args()
    crowd = Crowd(given.requests, given.tokens, given.queue, given.seqs)
    print(HEAD, flush=True)
    summaries = []
    for mode in MODES:
        summaries.append(overload(crowd, mode))
        print(summaries[-1].row(), flush=True)
    faults = [f"{each.mode}: {fault}" for each in summaries for fault in each.faults]
    print(*(faults or ["nothing amiss"]), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
