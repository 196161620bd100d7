"""The loop of the engine process: drain what has arrived, take a turn, report once."""

from typing import NamedTuple

import msgspec

from quire.engine.engine import NO_TURN, Engine
from quire.engine.line import Line
from quire.engine.messages import Abort, Report, ResetPrefixCache, Submit, ToEngine
from quire.scheduler.step import Delta, Refusal


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
