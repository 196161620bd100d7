"""Watches an engine for a step that does not end, and ends it then; tells why an engine ended."""

import logging
import os
import signal
from contextlib import suppress

from quire.engines.process.client import EngineClient, EngineEnd, EnginePhase
from quire.engines.process.end_cause import EndCause, OomKills, cause_of, is_stopped, ranks_of

logger = logging.getLogger(__name__)

STACKS_S = 1.0
"""An engine that is stuck gets so long to write its stacks to the log."""
OOM_LOOK_S = 5.0
"""Kills for memory are counted so often, so that one long ago is not taken for the cause."""
LONGEST_TICK_S = 1.0
"""The time between two looks counts for so much at most: where the server itself was held up, the
engine may have gone on."""


class StuckClock:
    """Counts the seconds that an engine was seen without progress."""

    def __init__(self) -> None:
        self._looked_s: float | None = None
        self._progress_s: float | None = None
        self._stuck_s = 0.0

    def look(self, now: float, last_progress_s: float | None) -> float:
        """Return for how long no progress was seen; None: nothing is to be done."""
        elapsed_s = 0.0 if self._looked_s is None else now - self._looked_s
        self._looked_s = now
        if last_progress_s is None or last_progress_s != self._progress_s:
            self._stuck_s = 0.0
        else:
            self._stuck_s += min(elapsed_s, LONGEST_TICK_S)
        self._progress_s = last_progress_s
        return self._stuck_s


class EngineWatch:
    """Looks at the engine that runs, every now and then. One that does no step for `stuck_after_s`
    seconds is ended: it is stuck, or somebody has stopped it; one that loads only if it is stopped
    for so long."""

    def __init__(self, stuck_after_s: float) -> None:
        self._stuck_after_s = stuck_after_s
        self._work, self._stop = StuckClock(), StuckClock()
        self._oom_kills = OomKills()
        self._oom_looked_s = 0.0
        self._ended_for: EndCause | None = None
        self._kill_s: float | None = None
        self._is_killed = False

    def look(self, client: EngineClient, now: float, last_progress_s: float | None) -> None:
        """Look at the engine, which had its last progress at `last_progress_s`, None if it has
        nothing to do."""
        if now - self._oom_looked_s > OOM_LOOK_S:
            self._oom_looked_s = now
            self._oom_kills.have_risen()
        pid = client.process_id
        is_loading = client.phase is EnginePhase.LOADING
        stopped = 0.0 if is_loading and pid is not None and _is_any_stopped(pid) else None
        stuck_s = max(self._work.look(now, last_progress_s), self._stop.look(now, stopped))
        if pid is None or self._is_killed:
            return
        if stuck_s <= self._stuck_after_s:
            self._kill_s = self._ended_for = None
        elif self._kill_s is None:
            self._begin(client, pid, now)
        elif now >= self._kill_s:
            self._kill(client)

    def _begin(self, client: EngineClient, pid: int, now: float) -> None:
        """Decide to end the engine, once it has told where it is."""
        self._ended_for = EndCause.STOPPED if is_stopped(pid) else EndCause.STUCK
        logger.error("the engine has done no step for %.0f s: it is ended", self._stuck_after_s)
        if self._ended_for is EndCause.STUCK:
            client.signal(signal.SIGUSR1)
            for each in ranks_of(pid):
                with suppress(OSError):
                    os.kill(each, signal.SIGUSR1)
            self._kill_s = now + STACKS_S
        else:
            self._kill(client)

    def _kill(self, client: EngineClient) -> None:
        """Kill the engine for good: outputs of before that are read until it has ended do not
        change why."""
        self._is_killed = True
        client.signal(signal.SIGKILL)

    def cause_of(self, end: EngineEnd) -> EndCause:
        """Return why the engine has ended; the next one is looked at from then on."""
        ended_for, self._ended_for, self._kill_s = self._ended_for, None, None
        self._is_killed = False
        return cause_of(end, ended_for=ended_for, was_oom_killed=self._oom_kills.have_risen())


def _is_any_stopped(pid: int) -> bool:
    """Return whether somebody has stopped an engine, or one of its ranks."""
    return is_stopped(pid) or any(map(is_stopped, ranks_of(pid)))
