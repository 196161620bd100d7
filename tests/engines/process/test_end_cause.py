"""The causes of an engine's end are told apart by facts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quire.engine.failure_kind import FailureKind
from quire.engine.messages import EngineFailure
from quire.engines.process.client import EngineEnd
from quire.engines.process.end_cause import EndCause, OomKills, cause_of, is_stopped

ENDS = [
    (EngineEnd(-signal.SIGKILL), False, None, EndCause.KILLED),
    (EngineEnd(-signal.SIGKILL), True, None, EndCause.OUT_OF_MEMORY),
    (EngineEnd(-signal.SIGKILL), False, EndCause.STUCK, EndCause.STUCK),
    (EngineEnd(-signal.SIGKILL), True, EndCause.STOPPED, EndCause.STOPPED),
    (EngineEnd(-signal.SIGTERM), False, None, EndCause.KILLED),
    (EngineEnd(-signal.SIGSEGV), True, None, EndCause.CRASHED),
    (EngineEnd(-signal.SIGABRT), False, None, EndCause.CRASHED),
    (EngineEnd(1), False, None, EndCause.CRASHED),
    (EngineEnd(1, EngineFailure("boom")), True, None, EndCause.CRASHED),
    (EngineEnd(1, EngineFailure("", FailureKind.START)), False, None, EndCause.CRASHED),
    (EngineEnd(1, EngineFailure("", FailureKind.DEVICE)), False, None, EndCause.DEVICE_ERROR),
    (
        EngineEnd(1, EngineFailure("", FailureKind.OUT_OF_MEMORY)),
        False,
        None,
        EndCause.OUT_OF_MEMORY,
    ),
    (EngineEnd(1, EngineFailure("", FailureKind.RANK_KILLED)), False, None, EndCause.RANK_LOST),
    (EngineEnd(1, EngineFailure("", FailureKind.RANK_KILLED)), True, None, EndCause.OUT_OF_MEMORY),
    (EngineEnd(0), False, None, EndCause.CRASHED),
    (EngineEnd(0, unusable="no message"), False, None, EndCause.PROTOCOL_ERROR),
]


@pytest.mark.parametrize(("end", "was_oom_killed", "ended_for", "cause"), ENDS)
def test_causes(
    end: EngineEnd, was_oom_killed: bool, ended_for: EndCause | None, cause: EndCause
) -> None:
    assert cause_of(end, ended_for=ended_for, was_oom_killed=was_oom_killed) is cause


def test_only_causes_that_a_request_can_bring_about_count_against_it() -> None:
    outer = {cause for cause in EndCause if not cause.may_be_of_a_request}
    assert outer == {EndCause.KILLED, EndCause.STOPPED, EndCause.RANK_LOST}


@pytest.mark.parametrize("has_group", [True, False])
def test_kills_for_memory_are_those_of_the_own_group_if_it_counts_them(
    tmp_path: Path, has_group: bool
) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (groups / "a/b").mkdir(parents=True)
    (proc / "self/cgroup").write_text("1:name=other:/x\n0::/a/b\n")
    (proc / "vmstat").write_text("oom_kill_other 9\noom_kill 3\n")
    if has_group:
        (groups / "a/b/memory.events").write_text("oom 0\noom_kill 0\n")
    kills = OomKills(proc, groups)
    assert not kills.have_risen()
    (proc / "vmstat").write_text("oom_kill 4\n")
    assert kills.have_risen() is not has_group
    if has_group:
        (groups / "a/b/memory.events").write_text("oom 1\noom_kill 1\n")
        assert kills.have_risen()
    assert not kills.have_risen()


def test_kills_are_none_where_nothing_counts_them(tmp_path: Path) -> None:
    assert not OomKills(tmp_path, tmp_path).have_risen()


def test_a_stopped_process_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while not is_stopped(process.pid):
            assert time.monotonic() < deadline
        process.kill()
        process.wait()
        assert not is_stopped(process.pid)
