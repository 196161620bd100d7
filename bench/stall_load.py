"""The load of `bench.stalls`: outputs that run beside long prompts, and what a client sees of both.

Some clients ask for one output after the other, and every few seconds somebody sends a long
prompt and asks for one token.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

import msgspec

from bench.load import Target, completion_request
from bench.requests import Ask, RequestSource
from quire.workbench.bench.exchange import exchange
from quire.workbench.bench.load import percentile
from quire.workbench.bench.replies import Reply, parse_reply
from quire.workbench.bench.workloads import Workload

ANSWER_S = 300.0
"""The time that requests may take when the watched time is over."""
PROMPT_SEEDS = 1000
"""Prompts of a round are drawn with a seed that no round of outputs has."""


class StallLoad(msgspec.Struct, frozen=True):
    """The numbers of a load. Lengths are in tokens; times are in seconds: of the load before it is
    watched, of the watched part, and between two long prompts."""

    num_streams: int = 8
    num_stream_prompt_tokens: int = 64
    num_stream_tokens: int = 192
    max_stream_requests: int = 800
    num_prompt_tokens: int = 1024
    every_s: float = 4.0
    warm_s: float = 8.0
    watched_s: float = 40.0

    @property
    def num_prompts(self) -> int:
        """The long prompts that are sent from the start of the load to the end of the watched
        time."""
        return ceil((self.warm_s + self.watched_s) / self.every_s)

    def stream_asks(self, source: RequestSource, seed: int) -> list[Ask]:
        """Return the requests of the clients, made before the clock starts."""
        lengths = (self.num_stream_prompt_tokens, self.num_stream_tokens)
        return source.asks(self._shape(self.max_stream_requests, *lengths), seed)

    def prompt_asks(self, source: RequestSource, seed: int) -> list[Ask]:
        """Return the long prompts."""
        return source.asks(
            self._shape(self.num_prompts, self.num_prompt_tokens, 1), seed + PROMPT_SEEDS
        )

    def _shape(self, num_requests: int, num_prompt: int, num_output: int) -> Workload:
        about = "outputs beside prompts"
        return Workload("stalls", about, self.num_streams, num_requests, 0, num_prompt, num_output)


class StallFigures(msgspec.Struct, frozen=True):
    """The figures of one server: tokens a second of outputs and of the long prompts together,
    milliseconds between two events with text of one output, and to the first token of the long
    prompts. None where there was nothing to measure, or a request failed."""

    total_tok_s: float | None
    inter_token_p50_ms: float | None
    inter_token_p99_ms: float | None
    first_token_p50_ms: float | None


@dataclass(slots=True)
class StallRun:
    """The watched part of one load on one server."""

    label: str
    began_s: float
    ends_s: float
    gaps_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    num_tokens: float = 0.0
    num_failed: int = 0
    first_failure: str | None = None

    def add_stream(self, reply: Reply) -> None:
        """Count what was watched of an output; events are worth equal parts of its tokens."""
        times_s = reply.text_times_s
        watched = [each for each in times_s if self.began_s <= each <= self.ends_s]
        self.gaps_s += [after - before for before, after in pairwise(watched)]
        if watched:
            num_tokens = reply.num_output_tokens or len(times_s)
            self.num_tokens += num_tokens * len(watched) / len(times_s)

    def add_prompt(self, reply: Reply, num_prompt_tokens: int) -> None:
        """Count a long prompt: its time if it was sent while watched, its tokens if its one token
        came while watched. A token that is no text by itself came when the answer ended."""
        first_s = min((*reply.text_times_s, reply.end_s))
        if reply.start_s >= self.began_s:
            self.first_token_s.append(first_s - reply.start_s)
        self.num_tokens += num_prompt_tokens * (self.began_s <= first_s <= self.ends_s)

    def add_failure(self, reason: str) -> None:
        """Count a request without a usable answer."""
        self.num_failed += 1
        self.first_failure = self.first_failure or reason

    def figures(self) -> StallFigures:
        """Return the figures; none where a request failed."""
        if self.num_failed:
            return StallFigures(None, None, None, None)
        return StallFigures(
            self.num_tokens / (self.ends_s - self.began_s),
            _ms(percentile(self.gaps_s, 50)),
            _ms(percentile(self.gaps_s, 99)),
            _ms(percentile(self.first_token_s, 50)),
        )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


@dataclass(slots=True)
class _Clients:
    """All that send requests in one load; after a failure, which makes it worthless, no more."""

    load: StallLoad
    target: Target
    found: StallRun

    async def send(self, ask: Ask) -> Reply | None:
        request = completion_request(self.target, ask)
        reply = parse_reply(
            await exchange(self.target.address, request, self.found.ends_s + ANSWER_S)
        )
        if not isinstance(reply, Reply):
            self.found.add_failure(reply.reason)
            return None
        if reply.num_output_tokens not in (None, ask.num_output_tokens):
            wrong = f"{reply.num_output_tokens} tokens came, asked were {ask.num_output_tokens}"
            self.found.add_failure(wrong)
            return None
        return reply

    async def stream(self, waiting: Sequence[Ask]) -> None:
        for ask in waiting:
            if time.perf_counter() >= self.found.ends_s or self.found.num_failed:
                return
            if (reply := await self.send(ask)) is not None:
                self.found.add_stream(reply)
        if time.perf_counter() < self.found.ends_s:
            answered = f"more than {self.load.max_stream_requests} outputs were answered"
            self.found.add_failure(answered)

    async def prompt(self, ask: Ask, at_s: float) -> None:
        await asyncio.sleep(at_s - time.perf_counter())
        if self.found.num_failed:
            return
        if (reply := await self.send(ask)) is not None:
            self.found.add_prompt(reply, reply.num_prompt_tokens or self.load.num_prompt_tokens)


async def _run(
    load: StallLoad, target: Target, label: str, streams: Sequence[Ask], prompts: Sequence[Ask]
) -> StallRun:
    start_s = time.perf_counter()
    began_s = start_s + load.warm_s
    found = StallRun(label, began_s, began_s + load.watched_s)
    clients = _Clients(load, target, found)
    async with asyncio.TaskGroup() as tasks:
        for first in range(load.num_streams):
            tasks.create_task(clients.stream(streams[first :: load.num_streams]))
        for number, ask in enumerate(prompts):
            tasks.create_task(clients.prompt(ask, start_s + number * load.every_s))
    return found


def run_load(
    load: StallLoad, target: Target, label: str, streams: Sequence[Ask], prompts: Sequence[Ask]
) -> StallRun:
    """Load a server, and return what was watched; waits for the answers to all that was sent."""
    return asyncio.run(_run(load, target, label, streams, prompts))
