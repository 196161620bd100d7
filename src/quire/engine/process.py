"""The engine's own process: `python -m quire.engine.process FD`, started by `client.py`.

The socket FD is its only way in and out. First comes the configuration; then it loads, says Ready,
and takes turns until the line closes. An error is said as Failed before the process ends; one that
nobody thought of is logged here too, with its traceback.
"""

import gc
import logging
import signal
import socket
import sys
import time
from contextlib import closing, suppress
from typing import NamedTuple

import msgspec

from quire.cache.sizing import TooLittleMemory
from quire.engine.build import build_engine
from quire.engine.config import EngineConfig
from quire.engine.engine import NO_TURN, Engine
from quire.engine.line import Line, LineClosed
from quire.engine.messages import (
    Abort,
    Failed,
    Loading,
    Ready,
    Report,
    ResetPrefixCache,
    Submit,
    ToEngine,
)
from quire.models.config import CheckpointError, UnsupportedModel
from quire.progress import log_format
from quire.scheduler.step import Delta, Refusal

logger = logging.getLogger(__name__)

FAILED = 1
LOG_FORMAT = "%(asctime)s %(levelname)s engine: %(message)s"
EXPECTED = (CheckpointError, TooLittleMemory, UnsupportedModel, ValueError)
"""What a user's settings can lead to: the text says it all."""


class News(NamedTuple):
    """What the messages of one turn have led to."""

    accepted: list[str]
    refused: list[Refusal]
    aborted: list[Delta]


class EngineLoop:
    """Between the line and the engine: drain what has arrived, take a turn, report once."""

    def __init__(self, engine: Engine, line: Line) -> None:
        self._engine = engine
        self._line = line
        self._decoder = msgspec.msgpack.Decoder[ToEngine](Submit | Abort | ResetPrefixCache)

    def run(self) -> None:
        """Until the line closes."""
        while True:
            self._turn()

    def _turn(self) -> None:
        engine = self._engine
        bodies = self._line.receive(wait=not engine.has_work)
        news = News([], [], [])
        for body in bodies:
            self._take(self._decoder.decode(body), news)
        turn = engine.turn() if engine.has_work else NO_TURN
        self._line.send(
            Report(
                step=turn.step,
                num_tokens=turn.num_tokens,
                step_s=turn.step_s,
                accepted=tuple(news.accepted),
                refused=tuple(news.refused),
                deltas=(*news.aborted, *turn.deltas),
                stats=engine.stats,
                events=engine.take_events(),
                kv_events=engine.take_kv_events(),
            )
        )

    def _take(self, message: ToEngine, news: News) -> None:
        if isinstance(message, Abort):
            aborted = self._engine.abort(message.request_id)
            if aborted is not None:
                news.aborted.append(aborted)
            return
        if isinstance(message, ResetPrefixCache):
            self._engine.reset_prefix_cache()
            return
        refusal = self._engine.submit(message.request)
        if refusal is None:
            news.accepted.append(message.request.id)
        else:
            news.refused.append(refusal)


def serve(line: Line) -> None:
    """Load what the first frame asks for, then loop."""

    def say(phase: str, done: int, total: int) -> None:
        line.send(Loading(phase, done, total))

    (body,) = line.receive(wait=True)
    config = msgspec.msgpack.decode(body, type=EngineConfig)
    logging.getLogger().setLevel(config.log_level.upper())
    try:
        engine, facts = build_engine(config, on_progress=say, clock=time.monotonic)
    except EXPECTED as error:
        line.send(Failed(str(error)))  # the server says it
        sys.exit(FAILED)
    with closing(engine):
        gc.collect()
        gc.freeze()  # what was loaded stays: no collection need look at it again
        line.send(Ready(facts))
        EngineLoop(engine, line).run()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format=log_format(sys.stderr, LOG_FORMAT))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when to end
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    try:
        serve(line)
    except LineClosed:
        return
    except Exception as error:
        logger.exception("the engine ends")
        with suppress(LineClosed):
            line.send(Failed(f"{type(error).__name__}: {error}"))
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
