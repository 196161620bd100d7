"""Runs checks as processes: several at once unless one must be alone, each with a limit, all within
a budget, so that what hangs or breaks the device's context stops nothing else."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.gpu.check import Check
from bench.gpu.child import FAULTY
from bench.gpu.log import End, Log, Status

ROOT = Path(__file__).resolve().parents[2]
TAIL_CHARACTERS = 3000
POLL_S = 0.05
LEAST_S = 5.0
"""A check that has less time left than it takes to import torch is not begun."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The way in which checks are run: on which device, how many at once, where they write, and
    within how many seconds together. `folder` is scratch that they share."""

    device: str
    is_rehearsal: bool
    num_jobs: int
    budget_s: float
    folder: Path
    log: Log


@dataclass(frozen=True, slots=True)
class Running:
    """A check under way, which is ended at `ends_s` of the monotonic clock."""

    check: Check
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    began_s: float
    ends_s: float


def run_checks(checks: Sequence[Check], plan: Plan) -> Iterator[End]:
    """Run the checks in their order; yield, and write down, how each ended."""
    ends_s = time.monotonic() + plan.budget_s
    waiting, running = list(checks), list[Running]()
    try:
        while waiting or running:
            while waiting and _may_begin(waiting[0], running, plan.num_jobs):
                check, left_s = waiting.pop(0), ends_s - time.monotonic()
                if left_s < LEAST_S:
                    yield _written(End(check.name, Status.NOT_RUN, 0.0, "out of time"), plan)
                else:
                    running.append(_begin(check, plan, min(check.limit_s, left_s)))
            for each in list(running):
                end = _end_of(each)
                if end is not None:
                    running.remove(each)
                    yield _written(end, plan)
            time.sleep(POLL_S)
    finally:
        for each in running:
            _ended(each)


def left_out(checks: Sequence[Check], num_jobs: int, budget_s: float) -> list[Check]:
    """Return the checks that `run_checks` would not begin if each took the time of its guess."""
    free_s, missed = [0.0] * num_jobs, []
    for check in checks:
        if check.is_alone:
            free_s = [max(free_s)] * num_jobs
        begins_s = min(free_s)
        if budget_s - begins_s < LEAST_S:
            missed.append(check)
        elif check.is_alone:
            free_s = [begins_s + check.takes_s] * num_jobs
        else:
            free_s[free_s.index(begins_s)] += check.takes_s
    return missed


def _may_begin(check: Check, running: Sequence[Running], num_jobs: int) -> bool:
    if not running:
        return True
    is_alone = check.is_alone or any(each.check.is_alone for each in running)
    return not is_alone and len(running) < num_jobs


def _begin(check: Check, plan: Plan, limit_s: float) -> Running:
    options = ["--device", plan.device, "--folder", str(plan.folder), "--log", str(plan.log.path)]
    if plan.is_rehearsal:
        options.append("--rehearse")
    output = tempfile.TemporaryFile()
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.gpu.child", check.name, check.run, *options],
        cwd=ROOT,
        env=_environment(plan),
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    now_s = time.monotonic()
    return Running(check, process, output, now_s, now_s + limit_s)


def _environment(plan: Plan) -> dict[str, str]:
    """Find Quire from a checkout that is not installed, and let Triton interpret in rehearsals."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment["TRITON_INTERPRET"] = "1" if plan.is_rehearsal else "0"
    environment["HF_HUB_OFFLINE"] = "1"
    if plan.is_rehearsal:
        environment["OMP_NUM_THREADS"] = "1"
    return environment


def _end_of(running: Running) -> End | None:
    """Return how a check ended, or None while it runs."""
    code = running.process.poll()
    now_s = time.monotonic()
    if code is None and now_s < running.ends_s:
        return None
    tail = _ended(running)
    status = {None: Status.TIMED_OUT, 0: Status.PASSED, FAULTY: Status.FAILED}.get(
        code, Status.CRASHED
    )
    shown = "" if status is Status.PASSED else tail
    return End(running.check.name, status, round(now_s - running.began_s, 1), shown)


def _ended(running: Running) -> str:
    """End a check with all that it has started, and return the last of what it printed."""
    with suppress(ProcessLookupError):
        os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait()
    with running.output as output:
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - TAIL_CHARACTERS))
        return output.read().decode(errors="replace")


def _written(end: End, plan: Plan) -> End:
    plan.log.add_end(end)
    return end
