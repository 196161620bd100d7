"""Starts engine processes: forked by one that stands by with everything imported, where there is
one.
"""

import json
import logging
import threading
import time
from pathlib import Path

from quire.engine.config import TOY_MODEL, EngineConfig, ModelConfig
from quire.engines.process.launch import LaunchedEngine, configure, launch
from quire.engines.process.standby import Standby

logger = logging.getLogger(__name__)

FORK_S = 5.0
"""A process that has forked engines before and does not fork another one within so long is ended:
somebody has stopped it."""
RENEWAL_S = 60.0
"""One that has ended by itself is started again no sooner than so long after its start."""


class EngineStarter:
    """Starts the engines of one server. With `has_standby` all are forked by one process; those
    that run code of a checkpoint only with `runs_own_code`: such code may need all of torch, which
    is then imported.

    Methods may be called in any thread.
    """

    def __init__(self, *, has_standby: bool, runs_own_code: bool = False) -> None:
        self._has_standby = has_standby
        self._runs_own_code = runs_own_code
        self._standby: Standby | None = None
        self._began_s = 0.0
        self._model_types: set[str] = set()
        self._ahead: list[tuple[EngineConfig, LaunchedEngine]] = []
        self._lock = threading.Lock()

    @property
    def standby_id(self) -> int | None:
        """The id of the process that stands by, or None while there is none."""
        standby = self._standby
        return standby.pid if standby is not None and standby.is_running else None

    def launch_ahead(self, config: EngineConfig) -> None:
        """Start an engine process that the next `launch` with this configuration returns, so that
        it imports and loads beside the server's own imports. Raises OSError if none can be
        started."""
        self._ahead.append((config, self._launch(config)))

    def launch(self, config: EngineConfig) -> LaunchedEngine:
        """Return an engine process with `config`. Raises OSError if none can be started."""
        with self._lock:
            for index, (of_config, engine) in enumerate(self._ahead):
                if of_config == config:
                    del self._ahead[index]
                    return engine
        return self._launch(config)

    def prepare(self, model_type: str) -> None:
        """Let the process that stands by import what loading a model of this type needs."""
        with self._lock:
            self._model_types.add(model_type)
            try:
                if self._standby is not None:
                    self._standby.prepare(model_type)
            except OSError as error:
                logger.debug("nothing stands by", exc_info=error)

    def must_renew(self, now: float) -> bool:
        """Return whether the process that stood by has ended and it is time to `renew` it."""
        return self._standby is not None and (
            self.standby_id is None and now - self._began_s > RENEWAL_S
        )

    def renew(self) -> None:
        """Start the process that stands by again, if it has ended."""
        with self._lock:
            standby = self._standby
            if standby is None or standby.is_running:
                return
            logger.warning("the process that stood by has ended: another one is started")
            try:
                standby = self._renewed()
                for model_type in self._model_types:
                    standby.prepare(model_type)
            except OSError as error:
                logger.warning("no process can stand by: %s", error)

    def close(self) -> None:
        """End the process that stands by, and engines that nobody has asked for; none follows."""
        with self._lock:
            self._has_standby = False
            standby, self._standby = self._standby, None
            ahead, self._ahead = self._ahead, []
        for _, engine in ahead:
            engine.process.kill()
            engine.close()
            engine.process.wait()
        if standby is not None:
            standby.close()

    def _launch(self, config: EngineConfig) -> LaunchedEngine:
        launched = None
        if self._runs_own_code or not config.model.trust_remote_code:
            with self._lock:
                launched = self._forked(model_type_of(config.model))
        if launched is None:
            return launch(config)
        try:
            configure(launched, config)
        except OSError:  # the process that stood by has ended
            launched.close()
            return launch(config)
        return launched

    def _forked(self, model_type: str) -> LaunchedEngine | None:
        """Return an engine that is forked, or will be once all is imported; None where none is."""
        if not self._has_standby:
            return None
        try:
            standby = self._standby
            if standby is None or not standby.is_running:
                standby = self._renewed()
            must_be_soon = standby.has_forked
            launched = standby.fork(model_type)
        except OSError as error:
            logger.warning("no engine can be forked: %s", error)
            return None
        if must_be_soon and not standby.wait_forked(FORK_S):
            logger.warning("the process that stands by does not fork: it is ended")
            launched.close()
            standby.close()
            return None
        return launched

    def _renewed(self) -> Standby:
        """Start a process that stands by. Raises OSError."""
        self._began_s = time.monotonic()
        if self._standby is not None:
            self._standby.close()
        self._standby = Standby(is_lean=not self._runs_own_code)
        return self._standby


def model_type_of(model: ModelConfig) -> str:
    """Return the type of a model in a local folder or of a toy, or nothing: then the load imports
    what it needs."""
    if model.model == TOY_MODEL:
        return TOY_MODEL
    try:
        found = json.loads((Path(model.model) / "config.json").read_bytes())["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""
