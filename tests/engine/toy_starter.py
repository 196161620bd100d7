"""Starts the toys of the tests of a process: one process imports for all of them."""

import atexit
from functools import cache

from quire.engines.process.engine_starter import EngineStarter


@cache
def toy_starter() -> EngineStarter:
    """The one starter of this process, which is closed at its end."""
    made = EngineStarter(has_standby=True)
    atexit.register(made.close)
    return made
