"""The requests that have not ended, in the order of their submission."""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from quire.engine.messages import Abort, EngineOutput, Submit
from quire.engines.process.live_request import SubmittedRequest
from quire.engines.process.token_stream import RequestRefused, TokenStream
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, ResumedOutput
from quire.scheduler.step import Delta, Refusal

CRASHES = "the request crashes the engine"
MAX_UNREAD_BYTES = 32 << 20
"""No request is sent while the engine has left more bytes than these unread."""
TOKEN_BYTES = 5
"""The bytes of a token in a message, at most."""


_REFUSALS = {
    Reason.DEADLINE_EXCEEDED: (
        Reason.DEADLINE_HOPELESS,
        "its time limit passed before an engine was there",
    ),
    Reason.QUARANTINED: (Reason.QUARANTINED, CRASHES),
}
"""The refusals of requests that end before any engine has accepted them."""


GiveBack: TypeAlias = Callable[[Sequence[SubmittedRequest], str], None]
"""Takes requests that have not ended and that no engine has, and why that is so."""


def fail_each(requests: Sequence[SubmittedRequest], reason: str) -> None:
    """End requests that cannot go on."""
    for live in requests:
        live.stream.fail(reason)


class RequestTable:
    """Every request that has not ended, by its id. Those in `accepting` no engine has accepted yet,
    and those in `waiting` the engine that runs does not have.

    `on_ended_here` gets the last delta of a request that ends while no engine has it, `give_back`
    all that are left when no engine follows.
    """

    def __init__(
        self, on_ended_here: Callable[[Delta], None], give_back: GiveBack = fail_each
    ) -> None:
        self.live: dict[str, SubmittedRequest] = {}
        self.accepting: dict[str, SubmittedRequest] = {}
        self.waiting: dict[str, SubmittedRequest] = {}
        self._num_withdrawn = 0
        self._on_ended_here = on_ended_here
        self._give_back = give_back

    def add(
        self, request: NewRequest, now: float, resumed: ResumedOutput | None = None
    ) -> SubmittedRequest:
        """Add a request that is submitted now, or `resumed` behind what another server's engine
        has handed out of its output. Raises RequestRefused if its id is in use."""
        live = self.new(request, now, resumed)
        self.adopt(live)
        return live

    def new(
        self, request: NewRequest, now: float, resumed: ResumedOutput | None = None
    ) -> SubmittedRequest:
        """Return a request that may be added. Raises RequestRefused if its id is in use."""
        if request.id in self.live:
            raise RequestRefused(
                Refusal(request.id, Reason.DUPLICATE_ID, "this request id is in use")
            )
        live = SubmittedRequest(request, TokenStream(request.id), now)
        if resumed is not None:
            live.resume(resumed)
        return live

    def adopt(self, live: SubmittedRequest) -> None:
        """Add a request that is new, or that another table gave back: it waits."""
        live.is_handed_over = live.is_withdrawn = False
        self.live[live.id] = self.waiting[live.id] = live
        if not live.stream.is_accepted:
            self.accepting[live.id] = live

    def refuse_beyond(self, request_id: str, most: int, num_unread: int | None) -> None:
        """Raise RequestRefused if `most` requests are not accepted yet, or too many bytes are
        unread: `num_unread`, or with None all of those that wait for an engine."""
        if num_unread is None:
            prompts = (len(live.request.prompt_token_ids) for live in self.accepting.values())
            num_unread = TOKEN_BYTES * sum(prompts)
        if len(self.accepting) < most and num_unread <= MAX_UNREAD_BYTES:
            return
        message = (
            f"the engine has not answered {len(self.accepting)} requests nor read {num_unread} "
            f"bytes of them; at most {most} requests and {MAX_UNREAD_BYTES} bytes are kept for it"
        )
        raise RequestRefused(Refusal(request_id, Reason.QUEUE_FULL, message))

    def hand_over(self, live: SubmittedRequest, now: float) -> Submit:
        """Return the message that hands the request to an engine, which has it from then on."""
        live.is_handed_over = True
        del self.waiting[live.id]
        return live.submission(now)

    def withdraw(self, live: SubmittedRequest) -> Abort:
        """Return the message that takes the request from the engine, so that it can go on later."""
        live.is_withdrawn = True
        self._num_withdrawn += 1
        return Abort(live.id)

    def without_withdrawn(self, output: EngineOutput) -> EngineOutput:
        """Return the output without the ends of requests that were withdrawn: they wait."""
        if not self._num_withdrawn:
            return output
        back = {
            delta.request_id: self.live[delta.request_id]
            for delta in output.deltas
            if delta.finish is not None and delta.finish.reason is Reason.ABORTED
            if delta.request_id in self.live and self.live[delta.request_id].is_withdrawn
        }
        for live in back.values():
            self._put_back(live)
        deltas = tuple(
            delta if delta.request_id not in back else delta._replace(finish=None)
            for delta in output.deltas
        )
        events = tuple(
            (request_id, event)
            for request_id, event in output.events
            if request_id not in back or event.reason is not Reason.ABORTED
        )
        return msgspec.structs.replace(output, deltas=deltas, events=events)

    def _put_back(self, live: SubmittedRequest) -> None:
        """Let a request that was withdrawn wait, or end it if that is wanted by now."""
        self._num_withdrawn -= 1
        live.is_withdrawn = live.is_handed_over = False
        if live.is_aborted:
            self.end(live, Reason.ABORTED)
        else:
            self.waiting[live.id] = live

    def take(self, output: EngineOutput) -> None:
        """Hand what an engine tells to the streams, and keep what another must know of it."""
        for request_id in output.accepted:
            accepted = self.accepting.pop(request_id, None)
            if accepted is not None:
                accepted.stream.accept()
        for refusal in output.refused:
            self.refuse(refusal)
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
                    self._num_withdrawn -= live.is_withdrawn
                live.put(delta)

    def deliver(self, last: Delta) -> None:
        """Hand the last delta of a request to its stream: it has ended while no engine had it."""
        live = self.live.pop(last.request_id, None)
        if live is not None:
            self.waiting.pop(live.id, None)
            self.accepting.pop(live.id, None)
            live.stream.accept()
            live.put(last)

    def refuse(self, refusal: Refusal) -> None:
        """Tell a request that it was not taken, or where it was before that it cannot go on."""
        live = self.live.pop(refusal.request_id, None)
        is_new = self.accepting.pop(refusal.request_id, None) is not None
        if live is None:
            return
        if is_new:
            live.stream.refuse(refusal)
        else:
            live.stream.fail(f"the request cannot go on: {refusal.message}")

    def end(self, live: SubmittedRequest, reason: Reason) -> None:
        """End a request that no engine has."""
        del self.live[live.id]
        self.waiting.pop(live.id, None)
        is_new = self.accepting.pop(live.id, None) is not None
        if is_new and reason in _REFUSALS:
            live.stream.refuse(Refusal(live.id, *_REFUSALS[reason]))
            return
        delta = live.finish(reason, time.monotonic())
        self._on_ended_here(delta)
        live.stream.accept()
        live.stream.put(delta)

    def lose_engine(self) -> None:
        """Note that the engine has ended: nobody has the requests, and those that it was told to
        end have ended."""
        self._num_withdrawn = 0
        for live in tuple(self.live.values()):
            self.lose(live)
        self.waiting = dict(self.live)

    def lose(self, live: SubmittedRequest) -> None:
        """Note that no engine has the request any more: it waits, or has ended if it was told
        to."""
        live.is_handed_over = live.is_withdrawn = False
        live.num_at_crash = len(live.token_ids)
        if live.is_aborted:
            self.end(live, Reason.ABORTED)
        else:
            live.stream.pause()
            self.waiting[live.id] = live

    def fail(self, live: SubmittedRequest, reason: str) -> None:
        """End a request that cannot go on, for a reason in words."""
        for requests in (self.live, self.accepting, self.waiting):
            requests.pop(live.id, None)
        live.stream.fail(reason)

    def end_late(self, now: float, *, is_engine_silent: bool) -> None:
        """End the requests whose time limits have passed while no engine has them, or one that does
        not answer: it ends them too, should it go on."""
        for live in tuple((self.live if is_engine_silent else self.waiting).values()):
            if live.is_late(now):
                self._num_withdrawn -= live.is_withdrawn
                self.end(live, Reason.DEADLINE_EXCEEDED)

    def give_back_all(self, down_reason: str) -> None:
        """Give every request back: no engine follows."""
        self._num_withdrawn = 0
        requests = list(self.live.values())
        for each in (self.live, self.accepting, self.waiting):
            each.clear()
        self._give_back(requests, down_reason)
