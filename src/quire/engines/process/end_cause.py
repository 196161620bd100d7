"""Tells why an engine process has ended."""

import signal
from enum import StrEnum
from pathlib import Path

from quire.engine.failure_kind import FailureKind
from quire.engine.process_setup import RANK_NAME
from quire.engines.process.client import EngineEnd

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class EndCause(StrEnum):
    """The causes of an engine's end."""

    KILLED = "killed"
    """Somebody has sent it a signal that ends processes."""
    OUT_OF_MEMORY = "out_of_memory"
    """The system has killed it for its memory, or an allocation failed."""
    DEVICE_ERROR = "device_error"
    """The device computes nothing any more for the process."""
    STUCK = "stuck"
    """It had work and did no step for too long."""
    STOPPED = "stopped"
    """Somebody had stopped it, for too long."""
    CRASHED = "crashed"
    """It has ended by itself: a fault, an exit, an exception."""
    RANK_LOST = "rank_lost"
    """Somebody has killed another process of its ranks, without which it cannot compute."""
    REPLICA_LOST = "replica_lost"
    """The replica that it ran in does not answer any more; its requests go on in others."""
    PROTOCOL_ERROR = "protocol_error"
    """Its messages could not be used."""

    @property
    def may_be_of_a_request(self) -> bool:
        """Whether a request can bring it about: those that ran are counted then."""
        return self not in (EndCause.KILLED, EndCause.STOPPED, EndCause.RANK_LOST)


_OF_FAILURES = {
    FailureKind.OUT_OF_MEMORY: EndCause.OUT_OF_MEMORY,
    FailureKind.DEVICE: EndCause.DEVICE_ERROR,
    FailureKind.RANK_KILLED: EndCause.RANK_LOST,
}
_SENT = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def cause_of(end: EngineEnd, *, ended_for: EndCause | None, was_oom_killed: bool) -> EndCause:
    """Return why an engine has ended. `ended_for` is why the server has killed it, if it has;
    `was_oom_killed` says that the system killed some process for its memory."""
    if ended_for is not None:
        return ended_for
    if end.unusable is not None:
        return EndCause.PROTOCOL_ERROR
    is_rank_killed = end.failed is not None and end.failed.kind is FailureKind.RANK_KILLED
    if (is_rank_killed or end.exit_code == -signal.SIGKILL) and was_oom_killed:
        return EndCause.OUT_OF_MEMORY
    if end.failed is not None:
        return _OF_FAILURES.get(end.failed.kind, EndCause.CRASHED)
    if -end.exit_code in _SENT:
        return EndCause.KILLED
    return EndCause.CRASHED


class OomKills:
    """Counts the processes that the system killed for their memory: of this control group where it
    counts them, else of the machine."""

    def __init__(self, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._path = _path_of_own_group(proc, cgroups) / "memory.events"
        if not self._path.exists():
            self._path = proc / "vmstat"
        self._num_seen = self._count()

    def have_risen(self) -> bool:
        """Return whether there were more since this was last asked."""
        before, self._num_seen = self._num_seen, self._count()
        return self._num_seen > before

    def _count(self) -> int:
        try:
            lines = self._path.read_text().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _path_of_own_group(proc: Path, cgroups: Path) -> Path:
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return cgroups
    own = next((line.partition("::")[2] for line in lines if line.startswith("0::")), "/")
    return cgroups / own.lstrip("/")


def is_stopped(process_id: int, proc: Path = PROC) -> bool:
    """Return whether somebody has stopped a process (SIGSTOP), or a debugger has."""
    try:
        text = (proc / str(process_id) / "stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in ("T", "t")


def ranks_of(process_id: int, proc: Path = PROC) -> list[int]:
    """Return the ids of the processes that are ranks beside an engine's own process."""
    try:
        children = (proc / f"{process_id}/task/{process_id}/children").read_text().split()
        named = [(int(each), (proc / each / "comm").read_text()) for each in children]
    except OSError:
        return []
    return [each for each, name in named if name.startswith(RANK_NAME)]
