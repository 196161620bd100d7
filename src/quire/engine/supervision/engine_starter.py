"""Starts engine processes: from one that stands by with everything imported, where there is one."""

import logging
import threading

from quire.engine.config import TOY_MODEL, EngineConfig
from quire.engine.launch import LaunchedEngine, configure, launch, spawn

logger = logging.getLogger(__name__)

CALM_S, PATIENCE_S = 1.0, 60.0
"""A process that is to stand by takes seconds of a core to import: it is started once nothing has
run for CALM_S, or after PATIENCE_S."""


class EngineStarter:
    """Starts the engines of one server. With `has_standby` one process at most stands by for all of
    them; it is of no use to the code of a checkpoint, which may need more than it imports.

    Methods may be called in any thread.
    """

    def __init__(self, *, has_standby: bool) -> None:
        self._has_standby = has_standby
        self._standby: LaunchedEngine | None = None
        self._is_closed = False
        self._wanted_for: str | None = None
        self._patience_ends_s = self._busy_s = 0.0
        self._lock = threading.Lock()

    @property
    def standby_id(self) -> int | None:
        """The id of the process that stands by, or None while there is none."""
        standby = self._standby
        if standby is None or standby.process.poll() is not None:
            return None
        return standby.process.pid

    def launch(self, config: EngineConfig) -> LaunchedEngine:
        """Return an engine process with `config`. Raises OSError if none can be started."""
        if config.model.trust_remote_code or config.model.model == TOY_MODEL:
            return launch(config)
        with self._lock:
            standby, self._standby = self._standby, None
        if standby is not None:
            try:
                configure(standby, config)
            except OSError:  # it has ended while it stood by
                standby.close()
            else:
                return standby
        return launch(config)

    def want(self, model_type: str, now: float, *, num_ends: int) -> None:
        """Note that a process is to stand by, likely for a model of this type: at once where
        engines have ended lately, `num_ends` of them, else when that disturbs nobody."""
        if self._has_standby:
            self._wanted_for = model_type
            self._patience_ends_s = now if num_ends else now + PATIENCE_S
            self._busy_s = now

    def is_due(self, now: float, *, is_busy: bool) -> bool:
        """Return whether it is time to `prepare`; an engine that knows is asked now and then."""
        if is_busy:
            self._busy_s = now
        if self._wanted_for is None:
            return False
        return now >= self._patience_ends_s or now - self._busy_s >= CALM_S

    def prepare(self) -> None:
        """Let the process stand by that is wanted, unless one does."""
        with self._lock:
            model_type, self._wanted_for = self._wanted_for, None
            if model_type is None or self._is_closed or self.standby_id is not None:
                return
            if self._standby is not None:
                self._standby.close()
                self._standby = None
            try:
                self._standby = spawn(standby_for=model_type)
            except OSError as error:
                logger.warning("no engine process can stand by: %s", error)

    def close(self) -> None:
        """End the process that stands by; none follows."""
        with self._lock:
            self._is_closed = True
            standby, self._standby = self._standby, None
        if standby is not None:
            standby.process.kill()
            standby.close()
            standby.process.wait()
