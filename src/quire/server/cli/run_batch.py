"""The command `quire run-batch`: its files, its progress, and how it ends."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop

from quire.engines.opener import opener
from quire.engines.process.engine_starter import EngineStarter
from quire.progress import Progress
from quire.server.apis.batches.batch_run import BatchStopped
from quire.server.apis.batches.lines import BatchIndex, LineLimits
from quire.server.app.app import build_service
from quire.server.app.batch_file import FileRefused, FileResult, check_lines, run_file
from quire.server.app.exit_codes import FAILED_START, KILLED_BY, USAGE_ERROR
from quire.server.cli.output import print_line
from quire.server.config import ServerConfig
from quire.server.sources import Sources


class BatchJob(NamedTuple):
    """A batch file that was found good, and the file of its answers."""

    lines: Path
    answers: Path
    found: BatchIndex


def run_batch(arguments: Mapping[str, object], config: ServerConfig) -> int:
    """Answer the lines of a batch file. Return the exit code."""
    lines, answers = Path(str(arguments["IN"])), Path(str(arguments["OUT"]))
    try:
        index = check_lines(lines, LineLimits(config.max_body_bytes))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(BatchJob(lines, answers, index), config))
    except FileRefused as error:
        print(f"quire run-batch: {error}", file=sys.stderr)
        return USAGE_ERROR
    except (BatchStopped, OSError) as error:
        print(f"quire run-batch: {error}; {AGAIN}", file=sys.stderr)
        return FAILED_START


AGAIN = "what was answered is kept, and the same command goes on from there"


async def _run(job: BatchJob, config: ServerConfig) -> int:
    """Run a job until it is done or a signal comes."""
    signals: list[int] = []
    working = asyncio.ensure_future(_work(job, config))

    def stop(number: int) -> None:
        signals.append(number)
        working.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        result = await working
    except asyncio.CancelledError:
        if not signals:
            raise
        name = signal.Signals(signals[0]).name
        print(f"quire run-batch: ended by {name}; {AGAIN}", file=sys.stderr)
        return KILLED_BY + signals[0]
    before = f" ({result.num_before} before)" if result.num_before else ""
    failed = f", {result.num_failed} of them with an error" if result.num_failed else ""
    print_line(f"answered {result.num_answered} lines{before}{failed}: {job.answers}")
    return 0


async def _work(job: BatchJob, config: ServerConfig) -> FileResult:
    sources = Sources(clock=time.monotonic, now=time.time, random_bytes=os.urandom)
    starter = EngineStarter(has_standby=False)
    service = build_service(config, opener(config.supervision, starter), sources)
    progress = Progress(sys.stderr, lambda part: print(part, file=sys.stderr), unit="line")
    show = partial(progress.show, "answering")
    try:
        with closing(progress):
            return await run_file(job.lines, job.answers, job.found, service, show)
    finally:
        await asyncio.shield(service.close())
