"""The loop of the engine process: read all messages, take a step, send one output."""

from typing import NamedTuple

from quire.engine.channel import Channel
from quire.engine.engine import NO_STEP, Engine
from quire.engine.messages import (
    Abort,
    EngineOutput,
    EngineQuery,
    Submit,
    ToEngine,
    decode_to_engine,
)
from quire.engine.orders import Answer
from quire.scheduler.step import Delta, Refusal
from quire.storage.disk.counts import DiskStats
from quire.storage.network.counts import TransferStats


class MessageResults(NamedTuple):
    """The results of the messages of one iteration: ids accepted, refusals, deltas of the
    aborted, answers to questions by their ids."""

    accepted: list[str]
    refused: list[Refusal]
    aborted: list[Delta]
    answers: list[tuple[str, Answer]]


IDLE_S = 1.0
"""Seconds after which an idle engine reports its disk writes, its KV transfers and the time of
pinned prefixes."""


class EngineLoop:
    """Connects an engine with its channel: read all messages, take a step, send one output."""

    def __init__(self, engine: Engine, channel: Channel) -> None:
        self._engine = engine
        self._channel = channel
        self._told: tuple[DiskStats | None, TransferStats | None] = (None, None)

    def run(self) -> None:
        """Serve until the channel closes. Raises ChannelClosed then."""
        while True:
            self._step()

    def _step(self) -> None:
        engine = self._engine
        bodies = self._channel.receive(wait=self._is_idle())
        results = MessageResults([], [], [], [])
        for body in bodies:
            self._take(decode_to_engine(body), results)
        has_work = engine.has_work
        output = engine.step() if has_work else NO_STEP
        self._told = engine.disk_stats, engine.transfer_stats
        usage = engine.take_usage()
        self._channel.send(
            EngineOutput(
                step=output.step,
                num_tokens=output.num_tokens,
                step_s=output.step_s,
                accepted=tuple(results.accepted),
                refused=tuple(results.refused),
                deltas=(*results.aborted, *output.deltas),
                stats=engine.stats,
                events=engine.take_events(),
                kv_events=engine.take_kv_events(),
                answers=tuple(results.answers),
                disk=self._told[0],
                transfer=self._told[1],
                live=engine.take_live_frame(has_worked=has_work or bool(bodies)),
                usage=usage,
            )
        )

    def _is_idle(self) -> bool:
        """Return True if there is nothing to do or to report before a message comes."""
        engine = self._engine
        if engine.has_work:
            return False
        wait_s = engine.live_wait_s
        if wait_s is not None and not self._channel.wait(wait_s):
            return False
        while not self._channel.wait(0) and engine.map_pages():
            pass
        while not self._channel.wait(IDLE_S):
            is_writing = engine.is_writing
            told = engine.disk_stats, engine.transfer_stats
            if told != self._told or engine.holds_blocks:
                return False
            if not is_writing:
                break
        return True

    def _take(self, message: ToEngine, results: MessageResults) -> None:
        if isinstance(message, Submit):
            refusal = self._engine.submit(message.request, message.resumed)
            if refusal is None:
                results.accepted.append(message.request.id)
            else:
                results.refused.append(refusal)
        elif isinstance(message, Abort):
            aborted = self._engine.abort(message.request_id)
            if aborted is not None:
                results.aborted.append(aborted)
        elif isinstance(message, EngineQuery):
            results.answers.append((message.id, message.question.answer(self._engine)))
        else:
            message.apply(self._engine)
