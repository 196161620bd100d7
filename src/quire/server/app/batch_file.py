"""Answers the lines of one batch file on an engine of its own, without a server: what `quire
run-batch` does."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from quire.server.apis.batches.answer_log import AnswerLog, AnswerLogError, open_answers
from quire.server.apis.batches.batch_run import BatchFiles, BatchRun, BatchStopped, LineEnd
from quire.server.apis.batches.line_runner import LineRunner
from quire.server.apis.batches.line_slots import LineSlots
from quire.server.apis.batches.lines import BatchIndex, LineLimits, LinePlace, read_index
from quire.server.app.app import build_app
from quire.server.generation.service import Service
from quire.server.tenancy.tenants import EVERYONE

AHEAD = 16
"""So many lines more than run at once are handed to the engine: none waits for a line to be
read."""


class FileResult(NamedTuple):
    """The lines that were answered: before this run, in it, and of these with an error."""

    num_before: int
    num_answered: int
    num_failed: int


class FileRefused(Exception):
    """The files cannot be used; the text says which, and why."""


def check_lines(path: Path, limits: LineLimits) -> BatchIndex:
    """Return the lines of a batch file. Raises FileRefused with all that is wrong with it."""
    try:
        index = read_index(path, limits)
    except OSError as error:
        raise FileRefused(f"cannot read {path}: {error.strerror}") from None
    if index.faults:
        told = "\n  ".join(fault.message for fault in index.faults)
        raise FileRefused(f"{path} is no batch file:\n  {told}")
    return index


async def run_file(
    lines: Path,
    answers: Path,
    index: BatchIndex,
    service: Service,
    show: Callable[[int, int], None],
) -> FileResult:
    """Answer every line of a file that `answers` has no answer to; `show` is told how many of how
    many have one.

    Raises FileRefused before anything is done, BatchStopped where the engine ends, and OSError
    where `answers` cannot be written; what was answered stays.
    """
    try:
        log = open_answers(answers)
    except AnswerLogError as error:
        raise FileRefused(str(error)) from None
    except OSError as error:
        raise FileRefused(f"cannot write {answers}: {error.strerror}") from None
    try:
        pending = _unanswered(index, lines, log)
        num_before, num_all = len(log.custom_ids), len(index.places)
        ends = dict.fromkeys(LineEnd, 0)

        def on_end(end: LineEnd) -> None:
            ends[end] += 1
            show(num_before + ends[LineEnd.COMPLETED] + ends[LineEnd.FAILED], num_all)

        show(num_before, num_all)
        if pending:
            limits = LineLimits(service.config.max_body_bytes)
            files = BatchFiles(lines, log, log)
            run = BatchRun(files, limits, EVERYONE, service=service, on_end=on_end)
            runner = LineRunner(build_app(service), service)
            await run.run(pending, runner, await _started(service))
    finally:
        await log.close()
    num_failed = ends[LineEnd.FAILED]
    return FileResult(num_before, ends[LineEnd.COMPLETED] + num_failed, num_failed)


def _unanswered(index: BatchIndex, lines: Path, log: AnswerLog) -> list[LinePlace]:
    """Return the lines without an answer. Raises FileRefused for answers to other lines."""
    strangers = log.custom_ids - {place.custom_id for place in index.places}
    if strangers:
        raise FileRefused(
            f"{log.path} has answers to lines that {lines} has not, as {min(strangers)!r}"
        )
    return [place for place in index.places if place.custom_id not in log.custom_ids]


async def _started(service: Service) -> LineSlots:
    """Start the service; return slots for as many lines as its engine runs at once. Raises
    BatchStopped."""
    await service.start()
    facts = service.default_model.facts
    if service.failure is not None or facts is None:
        raise BatchStopped(f"cannot start: {service.failure}")
    return LineSlots(facts.max_num_seqs + AHEAD, lambda: 0)
