"""A replica: one engine as it is, supervised as ever, for the requests of all front ends.

Nothing here knows what carries the calls: `quire.engines.ray.serve` hosts it as a deployment of Ray
Serve.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace

import msgspec

from quire.engine.config import EngineConfig, SupervisionConfig
from quire.engine.messages import Abort, EngineOutput, EngineQuery, Submit
from quire.engines.process.client import EnginePhase
from quire.engines.process.end_cause import EndCause
from quire.engines.process.engine_starter import EngineStarter
from quire.engines.process.supervisor import EngineSupervisor
from quire.engines.process.token_stream import EngineDown, RequestRefused, TokenStream
from quire.engines.ray.clocks import clock_offset_s, shift_s, shifted_events
from quire.engines.ray.messages import (
    Call,
    Collect,
    CollectReply,
    EngineLost,
    Greet,
    ReplicaIdentity,
    RequestsResumed,
    decode_message,
    encode,
)
from quire.engines.ray.outbox import Outbox
from quire.scheduler import request
from quire.scheduler.step import Delta
from quire.scheduler.usage.ledger import NOTHING_USED

logger = logging.getLogger(__name__)

POLL_S = 0.05
MAX_OUTBOXES = 256
"""Outboxes of front ends that call no more are forgotten beyond so many, the oldest first."""
decode_submit = msgspec.msgpack.Decoder(Submit).decode


class Dispatcher:
    """Hears the engine, and sorts what it tells by the front ends that have the requests."""

    def __init__(self) -> None:
        self.outboxes: dict[str, Outbox] = {}

    def outbox_of(self, front_end: str) -> Outbox:
        """Return what is to be told to a front end."""
        outbox = self.outboxes.get(front_end)
        if outbox is None:
            idle = [name for name, each in self.outboxes.items() if each.is_idle]
            for name in idle[: max(len(self.outboxes) - MAX_OUTBOXES, 0)]:
                del self.outboxes[name]
            outbox = self.outboxes[front_end] = Outbox()
        return outbox

    def on_output(self, output: EngineOutput) -> None:
        """Tell each front end what is its own of an output, and the accounts to all: what was used
        is told once."""
        ended = [each.request_id for each in output.deltas if each.finish is not None]
        ended += [each.request_id for each in output.refused]
        outboxes = [each for each in self.outboxes.values() if not each.is_idle]
        for outbox in outboxes or list(self.outboxes.values())[-1:]:
            own = output if len(outboxes) <= 1 else _own(output, outbox)
            outbox.pending.outputs.append(own)
            outbox.tell(ended)
            output = msgspec.structs.replace(output, usage=NOTHING_USED, kv_events=())

    def on_ended_here(self, delta: Delta) -> None:
        for outbox in self._that_have(delta.request_id):
            outbox.pending.ended.append(delta)
            outbox.tell([delta.request_id])

    def on_engine_lost(self, cause: EndCause) -> None:
        for outbox in self.outboxes.values():
            outbox.pending.lost.append(EngineLost(cause))
            outbox.tell()

    def on_quarantined(self) -> None:
        for outbox in list(self.outboxes.values())[-1:]:
            outbox.pending.num_quarantined += 1
            outbox.tell()

    def on_engine_resumed(self, num_resumed: int, out_of_service_s: float) -> None:
        for index, outbox in enumerate(reversed(self.outboxes.values())):
            num = 0 if index else num_resumed
            outbox.pending.resumed.append(RequestsResumed(num, out_of_service_s))
            outbox.tell()

    def on_flight_kept(self, is_written: bool) -> None:
        for outbox in list(self.outboxes.values())[-1:]:
            outbox.pending.num_flights += is_written
            outbox.pending.num_failed_flights += not is_written
            outbox.tell()

    async def settle(self, stream: TokenStream, outbox: Outbox) -> None:
        """Wait until a request is accepted; tell its front end if it is not."""
        try:
            await stream.accepted()
        except RequestRefused as refused:
            outbox.pending.refused.append(refused.refusal)
            outbox.tell([stream.request_id])
        except EngineDown:
            return  # all requests are given back

    def _that_have(self, request_id: str) -> Iterable[Outbox]:
        return [each for each in self.outboxes.values() if each.has(request_id)]


def _own(output: EngineOutput, outbox: Outbox) -> EngineOutput:
    """Return the output without what is of requests of other front ends."""
    return msgspec.structs.replace(
        output,
        accepted=tuple(id for id in output.accepted if outbox.has(id)),
        refused=tuple(each for each in output.refused if outbox.has(each.request_id)),
        deltas=tuple(each for each in output.deltas if outbox.has(each.request_id)),
        events=tuple(each for each in output.events if outbox.has(each[0])),
    )


class Replica:
    """One engine with all that keeps it running, under a name. `start` it on the event loop that
    all its methods run on."""

    def __init__(self, name: str, config: EngineConfig, supervision: SupervisionConfig) -> None:
        self.name = name
        self._dispatcher = Dispatcher()
        starter = EngineStarter(
            has_standby=supervision.engine_standby, runs_own_code=config.model.trust_remote_code
        )
        self._starter = starter
        self._supervisor = EngineSupervisor(config, self._dispatcher, supervision, starter)
        self._following: asyncio.Task[None] | None = None

    @property
    def process_id(self) -> int | None:
        """The id of the engine's process, or None while there is none."""
        return self._supervisor.process_id

    async def start(self) -> None:
        """Return once the engine is ready. Raises EngineDown if it cannot be loaded."""
        await self._supervisor.start()
        while self._supervisor.phase not in (EnginePhase.READY, EnginePhase.DOWN):
            await asyncio.sleep(POLL_S)
        self.check()
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        """Give all requests back once no engine follows the last one."""
        while self._supervisor.phase is not EnginePhase.DOWN:
            await asyncio.sleep(POLL_S)
        for outbox in self._dispatcher.outboxes.values():
            outbox.give_back()

    def check(self) -> None:
        """Raise EngineDown if the engine has ended for good."""
        if self._supervisor.phase is EnginePhase.DOWN:
            raise EngineDown(self._supervisor.down_reason or "the engine is down")

    def facts(self) -> bytes:
        """Return the facts of the engine, encoded."""
        return encode(self._supervisor.facts)

    async def generate(self, call: Call) -> AsyncGenerator[bytes, None]:
        """Run the request in the body of a call, and carry what is to be told to its front end
        meanwhile. A call that is closed first ends the request. Raises EngineDown."""
        submit = decode_submit(call.body)
        request_id, outbox = submit.request.id, self._dispatcher.outbox_of(call.front_end)
        outbox.open(request_id)
        settling: asyncio.Task[None] | None = None
        try:
            try:
                stream = self._supervisor.submit(submit.request, _resumed(submit, call))
                settling = asyncio.create_task(self._dispatcher.settle(stream, outbox))
            except RequestRefused as refused:
                outbox.pending.refused.append(refused.refusal)
                outbox.tell([request_id])
            yield encode(ReplicaIdentity(self.name, clock_offset_s()))
            async with aclosing(outbox.carry(request_id)) as told:
                async for item in told:
                    yield encode(item)
        finally:
            outbox.close(request_id)
            if settling is not None:
                settling.cancel()
            self._supervisor.abort(request_id)

    async def order(self, call: Call) -> bytes:
        """Do what the body of a call says; return the answer, encoded, to what asks for one, else
        nothing. Raises EngineDown or RequestRefused."""
        message, engine = decode_message(call.body), self._supervisor
        if isinstance(message, Abort):
            engine.abort(message.request_id)
        elif isinstance(message, Greet):
            self._dispatcher.outbox_of(call.front_end)
            return encode(ReplicaIdentity(self.name, clock_offset_s()))
        elif isinstance(message, Collect):
            told = self._dispatcher.outbox_of(call.front_end).collect()
            return encode(CollectReply(self.name, told))
        elif isinstance(message, EngineQuery):
            return encode(await engine.ask(message.question))
        else:
            engine.order(message)
        return b""

    async def close(self) -> None:
        """End the engine."""
        await self._supervisor.close()
        if self._following is not None:
            await self._following
        await asyncio.to_thread(self._starter.close)


def _resumed(submit: Submit, call: Call) -> request.ResumedOutput | None:
    """Return what a request goes on behind, at the times of this machine's clock."""
    if submit.resumed is None:
        return None
    shift = shift_s(call.clock_offset_s, clock_offset_s())
    timeline = shifted_events(submit.resumed.timeline, shift)
    return replace(submit.resumed, timeline=timeline)
