"""The requests that have not ended, in the order of their submission."""

import time
from collections.abc import Callable

from quire.engine.messages import EngineOutput
from quire.engine.supervision.live_request import LiveRequest
from quire.engine.token_stream import Refused, TokenStream
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Delta, Refusal

TOKEN_BYTES = 5
"""The bytes of a token in a message, at most."""


class RequestTable:
    """Every request that has not ended, by its id; those in `accepting` no engine has accepted yet.

    `on_ended_here` gets the last delta of a request that ends while no engine has it.
    """

    def __init__(self, on_ended_here: Callable[[Delta], None]) -> None:
        self.live: dict[str, LiveRequest] = {}
        self.accepting: dict[str, LiveRequest] = {}
        self._on_ended_here = on_ended_here

    @property
    def num_accepting_bytes(self) -> int:
        """The bytes that the requests would take as messages which no engine has accepted yet."""
        return TOKEN_BYTES * sum(
            len(live.request.prompt_token_ids) for live in self.accepting.values()
        )

    def add(self, request: NewRequest, now: float) -> LiveRequest:
        """Add a request that is submitted now. Raises Refused if its id is in use."""
        if request.id in self.live:
            raise Refused(Refusal(request.id, Reason.DUPLICATE_ID, "this request id is in use"))
        live = LiveRequest(request, TokenStream(request.id), now)
        self.live[request.id] = self.accepting[request.id] = live
        return live

    def take(self, output: EngineOutput) -> None:
        """Hand what an engine tells to the streams, and keep what another must know of it."""
        for request_id in output.accepted:
            accepted = self.accepting.pop(request_id, None)
            if accepted is not None:
                accepted.stream.accept()
        for refusal in output.refused:
            self._take_refusal(refusal)
        live_requests = self.live
        for request_id, event in output.events:
            noted = live_requests.get(request_id)
            if noted is not None:
                noted.timeline.append(event)
        for delta in output.deltas:
            live = live_requests.get(delta.request_id)
            if live is not None:
                if delta.finish is not None:
                    del live_requests[delta.request_id]
                live.put(delta)

    def _take_refusal(self, refusal: Refusal) -> None:
        live = self.live.pop(refusal.request_id, None)
        is_new = self.accepting.pop(refusal.request_id, None) is not None
        if live is None:
            return
        if is_new:
            live.stream.refuse(refusal)
        else:
            live.stream.fail(f"the request cannot go on: {refusal.message}")

    def end(self, live: LiveRequest, reason: Reason) -> None:
        """End a request that no engine has."""
        del self.live[live.id]
        is_new = self.accepting.pop(live.id, None) is not None
        if is_new and reason is Reason.DEADLINE_EXCEEDED:
            message = "its time limit passed before an engine was there"
            live.stream.refuse(Refusal(live.id, Reason.DEADLINE_HOPELESS, message))
            return
        delta = live.finish(reason, time.monotonic())
        self._on_ended_here(delta)
        live.stream.accept()
        live.stream.put(delta)

    def lose_engine(self) -> None:
        """Note that the engine has ended: nobody has the requests, and those that it was told to
        end have ended."""
        for live in tuple(self.live.values()):
            live.is_handed_over = False
            if live.is_aborted:
                self.end(live, Reason.ABORTED)
            else:
                live.stream.pause()

    def end_late(self, now: float) -> None:
        """End the requests whose time limits have passed while no engine has them."""
        for live in tuple(self.live.values()):
            if not live.is_handed_over and live.is_late(now):
                self.end(live, Reason.DEADLINE_EXCEEDED)

    def fail_all(self, down_reason: str) -> None:
        """End every request: no engine follows."""
        for live in self.live.values():
            live.stream.fail(down_reason)
        self.live.clear()
        self.accepting.clear()
