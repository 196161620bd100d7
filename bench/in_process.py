"""An engine without a server around it: requests in, deltas out, for what is not about HTTP."""

import time

from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts
from quire.engine.startup.build import build_engine


def build_quietly(config: EngineConfig) -> tuple[Engine, EngineFacts]:
    return build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
