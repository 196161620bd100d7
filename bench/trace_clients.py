"""Sends the requests of a trace to a real server, as `quire sim` sends them to a simulated one: at
their times, or by clients that each wait for their answer. Prompts are random tokens.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from quire.workbench.bench.exchange import Exchange, ServerAddress, build_request, exchange
from quire.workbench.bench.load import Percentiles, percentiles
from quire.workbench.bench.replies import Failure, Reply, parse_reply
from quire.workbench.simulation.simulation import SimLoad
from quire.workbench.simulation.traces.traced_request import TracedRequest

PATH = "/v1/completions"
TIMEOUT_S = 1800.0
SPECIAL_TOKENS = 100
"""No prompt has the first and the last token ids of a vocabulary: some of them are special."""


class Asked(NamedTuple):
    """A server, and how many tokens its model knows."""

    address: ServerAddress
    model: str
    vocab_size: int


class Played(NamedTuple):
    """The times that the clients saw, and output tokens a second."""

    first_token: Percentiles
    inter_token: Percentiles
    end_to_end: Percentiles
    output_tok_s: float


def play(load: SimLoad, asked: Asked, seed: str) -> Played:
    """Send all requests of a load, with the prompts that a seed draws. Raises SystemExit where one
    fails."""
    draw = random.Random(seed)
    bodies = [
        build_request(asked.address, PATH, _body(each, asked, draw)) for each in load.requests
    ]
    start_s = time.perf_counter()
    exchanges = asyncio.run(_play(load, asked.address, bodies))
    seconds = time.perf_counter() - start_s
    return _summary([parse_reply(each) for each in exchanges], seconds)


def _body(request: TracedRequest, asked: Asked, draw: random.Random) -> bytes:
    known = range(SPECIAL_TOKENS, asked.vocab_size - SPECIAL_TOKENS)
    return msgspec.json.encode(
        {
            "model": asked.model,
            "prompt": draw.choices(known, k=request.num_prompt_tokens),
            "max_tokens": request.num_output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


async def _play(load: SimLoad, address: ServerAddress, bodies: Sequence[bytes]) -> list[Exchange]:
    start_s = time.perf_counter()
    waiting: Iterator[tuple[TracedRequest, bytes]] = iter(zip(load.requests, bodies, strict=True))
    done: list[Exchange] = []

    async def send(body: bytes) -> None:
        done.append(await exchange(address, body, start_s + TIMEOUT_S))

    async def client() -> None:
        for _, body in waiting:
            await send(body)

    async with asyncio.TaskGroup() as clients:
        for _ in range(load.concurrency):
            clients.create_task(client())
        if not load.concurrency:
            for request, body in waiting:
                await asyncio.sleep(max(0.0, start_s + request.sent_s - time.perf_counter()))
                clients.create_task(send(body))
    return done


def _summary(parsed: Sequence[Reply | Failure], seconds: float) -> Played:
    failures = [each.reason for each in parsed if isinstance(each, Failure)]
    if failures:
        raise SystemExit(f"{len(failures)} of {len(parsed)} requests failed: {failures[0]}")
    replies = [each for each in parsed if isinstance(each, Reply)]
    times_s = [each.text_times_s for each in replies]
    return Played(
        percentiles([each.text_times_s[0] - each.start_s for each in replies if each.text_times_s]),
        percentiles([b - a for stamps in times_s for a, b in pairwise(stamps)]),
        percentiles([each.end_s - each.start_s for each in replies]),
        sum(each.num_output_tokens or 0 for each in replies) / seconds,
    )
