"""The pace of running outputs while a long prompt comes every few seconds, on two servers in turn.

    python -m bench.stalls --model MODEL_DIR --data ../shared/data \\
        --subject-args "--target-itl-ms 100" --peer quire --repeats 3

takes the options of `bench.compare`. STREAMS clients each ask for one output after the other, and
every EVERY_S seconds somebody sends a prompt of PROMPT_TOKENS tokens and asks for one token.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec

from bench.load import Target, completion_request
from bench.machine import read_machine
from bench.requests import Ask, RequestSource, build_source
from bench.servers import Launch, Server, running
from bench.settings import Settings, parse_settings
from quire.workbench.bench.exchange import exchange
from quire.workbench.bench.load import percentile
from quire.workbench.bench.replies import Reply, parse_reply
from quire.workbench.bench.workloads import Workload

STREAMS, STREAM_PROMPT, STREAM_OUTPUT = 8, 64, 192
PROMPT_TOKENS, EVERY_S = 1024, 4.0
WARM_S, WATCHED_S = 8.0, 40.0
MAX_STREAM_REQUESTS = 400
"""Prompts that are made before the clock starts; more than any server of a CPU answers."""


@dataclass(slots=True)
class StallRun:
    """The figures of one server while it was watched: seconds between two events with text of one
    stream, seconds to the first token of the long prompts, and the tokens of both."""

    label: str
    gaps_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_failed: int = 0

    @property
    def total_tok_s(self) -> float:
        return self.num_tokens / WATCHED_S

    def line(self) -> str:
        """Return the figures in one line."""
        gap = [percentile(self.gaps_s, percent) or 0.0 for percent in (50, 99)]
        first = percentile(self.first_token_s, 50) or 0.0
        return (
            f"{self.label}: between tokens p50 {1e3 * gap[0]:.0f} ms, p99 {1e3 * gap[1]:.0f} ms; "
            f"long prompts p50 {1e3 * first:.0f} ms ({len(self.first_token_s)}); "
            f"{self.total_tok_s:.1f} tok/s; {self.num_failed} failed"
        )


def _shape(num_requests: int, num_prompt: int, num_output: int) -> Workload:
    return Workload(
        "stalls", "outputs beside prompts", STREAMS, num_requests, 0, num_prompt, num_output
    )


async def _watch(server: Server, streams: Sequence[Ask], prompts: Sequence[Ask]) -> StallRun:
    peer = server.launch.peer
    target = Target(server.port, peer.model_name(server.launch.model_path), peer.extra_fields)
    began_s = time.perf_counter() + WARM_S
    ends_s = began_s + WATCHED_S
    waiting, found = iter(streams), StallRun(server.launch.label)

    async def send(ask: Ask) -> Reply | None:
        request = completion_request(target, ask)
        reply = parse_reply(await exchange(target.address, request, ends_s + 120))
        found.num_failed += not isinstance(reply, Reply)
        return reply if isinstance(reply, Reply) else None

    async def stream() -> None:
        for ask in waiting:
            if time.perf_counter() >= ends_s:
                return
            reply = await send(ask)
            times_s = () if reply is None else reply.text_times_s
            watched = [each for each in times_s if began_s <= each <= ends_s]
            found.gaps_s += [after - before for before, after in pairwise(watched)]
            found.num_tokens += len(watched)

    async def prompt(ask: Ask, at_s: float) -> None:
        await asyncio.sleep(at_s - time.perf_counter())
        sent_s = time.perf_counter()
        reply = await send(ask)
        if reply is not None and reply.text_times_s:
            found.first_token_s.append(reply.text_times_s[0] - sent_s)
            found.num_tokens += PROMPT_TOKENS * (reply.text_times_s[0] <= ends_s)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(STREAMS):
            tasks.create_task(stream())
        for number, ask in enumerate(prompts):
            tasks.create_task(prompt(ask, began_s + number * EVERY_S))
    return found


def _measure(
    settings: Settings, source: RequestSource, servers: Sequence[Server]
) -> list[StallRun]:
    runs = []
    num_prompts = int(WATCHED_S / EVERY_S)
    for round_index in range(settings.num_repeats):
        seed = settings.seed + round_index
        streams = source.asks(_shape(MAX_STREAM_REQUESTS, STREAM_PROMPT, STREAM_OUTPUT), seed)
        prompts = source.asks(_shape(num_prompts, PROMPT_TOKENS, 1), seed + 1000)
        for server in servers if round_index % 2 == 0 else servers[::-1]:
            others = [each for each in servers if each is not server]
            with ExitStack() as paused:
                for each in others:
                    paused.enter_context(each.paused())
                runs.append(asyncio.run(_watch(server, streams, prompts)))
            print(f"round {round_index + 1}: {runs[-1].line()}", flush=True)
    return runs


def main() -> None:
    """Measure both servers in turn, and print the medians of all rounds."""
    settings = parse_settings(sys.argv[1:], os.environ)
    log_dir = settings.log_dir or Path(tempfile.mkdtemp(prefix="quire-stalls-"))
    log_dir.mkdir(parents=True, exist_ok=True)
    source = build_source(settings.model_dir, settings.data_dir)

    def start(launch: Launch, stack: ExitStack) -> Server:
        log_path = log_dir / f"{launch.label}.log"
        timeout_s = settings.start_timeout_s
        return stack.enter_context(running(launch, log_path=log_path, start_timeout_s=timeout_s))

    with ExitStack() as stack:
        servers = [start(launch, stack) for launch in settings.launches]
        runs = _measure(settings, source, servers)
    print(read_machine())
    for server in servers:
        own = [run for run in runs if run.label == server.launch.label]
        whole = StallRun(
            server.launch.label,
            [gap for run in own for gap in run.gaps_s],
            [first for run in own for first in run.first_token_s],
            int(median(run.num_tokens for run in own)),
            sum(run.num_failed for run in own),
        )
        print(f"all rounds, {' '.join(server.launch.options)}: {whole.line()}")
    if settings.json_path is not None:
        settings.json_path.write_bytes(msgspec.json.encode(runs))


if __name__ == "__main__":
    main()
