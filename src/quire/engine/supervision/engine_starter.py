"""Starts engine processes: from one that stands by with everything imported, where there is one."""

import logging
import threading

from quire.engine.config import TOY_MODEL, EngineConfig
from quire.engine.launch import LaunchedEngine, configure, launch, spawn

logger = logging.getLogger(__name__)


class EngineStarter:
    """Starts the engines of one server. With `has_standby` one process at most stands by for all of
    them; it is of no use to the code of a checkpoint, which may need more than it imports.

    Methods may be called in any thread.
    """

    def __init__(self, *, has_standby: bool) -> None:
        self._has_standby = has_standby
        self._standby: LaunchedEngine | None = None
        self._is_closed = False
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

    def prepare(self, model_type: str) -> None:
        """Let a process stand by, likely for a model of this type, unless one does or none is
        wanted."""
        with self._lock:
            if not self._has_standby or self._is_closed or self.standby_id is not None:
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
