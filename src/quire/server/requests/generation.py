"""A job in the engine: its requests handed over together, their outputs as one stream of pieces.

However it ends, no request of the job outlives it in the engine.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from quire.engine.client import EngineDown, Refused, TokenStream
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Delta, Finish
from quire.server.errors import TOO_MANY, DeadlineExceeded, EngineGone, Overloaded, RequestError
from quire.server.observability.metrics import Finished, Late, RequestMeter
from quire.server.observability.timelines import Timeline
from quire.server.openai.protocol.wire import CachedTokens, QuireAccount, Timing, Usage
from quire.server.requests.choice import Choice
from quire.server.requests.job import Job, Piece
from quire.server.service import Service
from quire.server.text.stop_strings import StopTable
from quire.server.text.tokenizer import TextTokenizer

_REFUSAL_CODES = {
    Reason.CONTEXT_EXCEEDED: "context_length_exceeded",
    Reason.NEVER_FITS: "never_fits",
    Reason.PROMPT_EMPTY: "invalid_value",
}


MANY_CHOICES = 64
"""Choices that are handed over or opened at once on the event loop: some milliseconds."""
_FULL = frozenset((Reason.QUEUE_FULL, Reason.OVER_SHARE))


class IndexedPiece(NamedTuple):
    """A piece of the choice with this index."""

    choice: int
    piece: Piece


class Generation:
    """Start it, then read `pieces` to the end; `abort` may come at any time."""

    def __init__(self, job: Job, service: Service, tokenizer: TextTokenizer) -> None:
        self.job = job
        self._engine = service.engine
        self._handing_over = service.handing_over
        self._turns = service.turns
        self._metrics = service.metrics
        self._clock = service.sources.clock
        self._timelines = service.timelines
        self._timeline: Timeline | None = None
        self._tokenizer = tokenizer
        self._choices: list[Choice] = []  # once the engine has taken the requests
        self._meters = [
            RequestMeter(service.metrics, job.arrival, request) for request in job.requests
        ]
        self._finishes: dict[int, Finish] = {}
        self._stopped: set[int] = set()
        self._streams: list[TokenStream] = []

    async def start(self) -> None:
        """Returns when the scheduler has taken every request; raises RequestError if it did not."""
        now = self._clock()
        self._timeline = self._timelines.open(self.job, now)
        requests = self._in_time(now)
        try:
            await self._submit(requests)
            self._choices = await self._open_choices()
        except Refused as refused:
            self.abort(None)
            raise self._refusal(refused) from None
        except EngineDown as down:
            self.abort(Finished.ERROR)
            raise EngineGone(f"The engine is down: {down}") from None

    async def _open_choices(self) -> list[Choice]:
        """Between other tasks, where they are many."""
        job, choices = self.job, []
        stops = StopTable(job.text.stop, include_stop=job.text.include_stop)
        for index, request in enumerate(job.requests):
            scores = request.prompt_logprobs is not None
            prompt = job.prompt_of(index)
            choices.append(
                Choice(job.text, prompt, self._tokenizer, stops, wants_prompt_logprobs=scores)
            )
            if index % MANY_CHOICES == MANY_CHOICES - 1:
                await self._turns.take(job.arrival.tenant.name)
        return choices

    def _in_time(self, now: float) -> tuple[NewRequest, ...]:
        """The requests, with what is left of their time."""
        limit_s = self.job.time_limit_s
        if limit_s is None:
            return self.job.requests
        left_s = self.job.arrival.arrived_s + limit_s - now
        if left_s <= 0:
            self.abort(None)
            self._note_refusal(Reason.DEADLINE_HOPELESS)
            raise DeadlineExceeded("The deadline passed before the request reached the engine.")
        return tuple(replace(request, time_limit_s=left_s) for request in self.job.requests)

    def _note_refusal(self, reason: Reason) -> None:
        if reason in _FULL:
            self._metrics.num_rejected += 1
        if reason is Reason.DEADLINE_HOPELESS:
            self._metrics.num_late[Late.REFUSED] += 1
        if self._timeline is not None:
            self._timeline.refused = reason

    async def _submit(self, requests: tuple[NewRequest, ...]) -> None:
        """All or none: the first refusal ends them all."""
        if len(requests) == 1:
            self._streams = [self._engine.submit(requests[0])]
        else:
            async with self._handing_over:  # where two share what is left, neither gets in
                await self._submit_many(requests)
        for stream in self._streams:
            await stream.accepted()

    async def _submit_many(self, requests: tuple[NewRequest, ...]) -> None:
        """Between other tasks."""
        for number, request in enumerate(requests, start=1):
            self._streams.append(self._engine.submit(request))
            if number % MANY_CHOICES == 0:
                await self._turns.take(self.job.arrival.tenant.name)

    def _refusal(self, refused: Refused) -> RequestError:
        refusal = refused.refusal
        message = f"{refusal.message[:1].upper()}{refusal.message[1:]}."
        self._note_refusal(refusal.reason)
        if refusal.reason is Reason.DEADLINE_HOPELESS:
            return DeadlineExceeded(message)
        if refusal.reason in _FULL:
            num_taken = sum(stream.is_accepted for stream in self._streams)
            own = f", {num_taken} of them for this one" if num_taken else ""
            message = f"The server is full: {refusal.message}{own}."
            if refusal.reason is Reason.QUEUE_FULL:
                return Overloaded(message, refusal.wait_s)
            code = "rate_limit_exceeded"
            return Overloaded(message, refusal.wait_s, code=code, status=TOO_MANY)
        code = _REFUSAL_CODES.get(refusal.reason, str(refusal.reason))
        return RequestError(message, param=refusal.field, code=code)

    def abort(self, reason: Finished | None) -> None:
        """End what still runs, and count it under `reason`; a request is counted once."""
        for index, request in enumerate(self.job.requests):
            self._engine.abort(request.id)
            self._meters[index].end(Finished.STOP if index in self._stopped else reason)

    def close(self) -> None:
        """Nothing more is sent to the client."""
        if self._timeline is not None:
            self._timeline.ended_s = self._clock()

    async def pieces(self) -> AsyncGenerator[IndexedPiece, None]:
        """Every piece of every choice, as they come. Raises RequestError if the engine fails."""
        for index, choice in enumerate(self._choices):
            opening = choice.open()
            if opening is not None:
                yield IndexedPiece(index, opening)
        try:
            async with aclosing(merge(self._streams)) as deltas:
                async for index, delta in deltas:
                    if index in self._stopped:
                        self._await_account(index, delta)
                    else:
                        yield IndexedPiece(index, await self._take(index, delta))
        except EngineDown as down:
            raise EngineGone(f"The engine went down: {down}") from None

    async def _take(self, index: int, delta: Delta) -> Piece:
        if delta.finish is not None and delta.finish.reason is Reason.DEADLINE_EXCEEDED:
            self._metrics.num_late[Late.UNFINISHED] += len(self._choices) - len(self._finishes)
            raise DeadlineExceeded("The deadline passed before the output was complete.")
        if delta.token_ids:
            self._meters[index].tokens(len(delta.token_ids), self._clock())
        piece = await self._choices[index].take(delta)
        if piece.ending is not None:
            if delta.finish is None:  # a stop string: the engine does not know yet
                self._stopped.add(index)
                self._engine.abort(self.job.requests[index].id)
            else:
                self._close(index, Finished(piece.ending.finish_reason), delta.finish)
        return piece

    def _await_account(self, index: int, delta: Delta) -> None:
        """The text has ended at a stop string; the engine's account of the request follows."""
        if delta.finish is not None:
            self._close(index, Finished.STOP, delta.finish)

    def _close(self, index: int, reason: Finished, finish: Finish) -> None:
        self._finishes[index] = finish
        self._meters[index].succeed(reason, finish)
        self._count_prompt(index // self.job.num_choices * self.job.num_choices)

    def _count_prompt(self, first: int) -> None:
        """Once the choices of a prompt, of which this is the first, have all ended."""
        indices = range(first, first + self.job.num_choices)
        if all(index in self._finishes for index in indices):
            longest = max(self._choices[index].num_tokens for index in indices)
            self._metrics.observe("request_max_num_generation_tokens", longest)
            self._metrics.observe("request_params_n", self.job.num_shown)

    def best(self) -> list[int]:
        """The choices to show, prompt by prompt; where some are left out, the likeliest first."""
        num_drawn, num_shown = self.job.num_choices, self.job.num_shown
        indices = range(len(self._choices))
        if num_drawn == num_shown:
            return list(indices)
        by_prompt = [indices[i : i + num_drawn] for i in indices[::num_drawn]]
        return [index for drawn in by_prompt for index in self._ranked(drawn)[:num_shown]]

    def _ranked(self, drawn: Sequence[int]) -> list[int]:
        return sorted(drawn, key=lambda index: -self._choices[index].mean_logprob)

    def usage(self) -> Usage:
        num_prompt = self.job.num_prompt_tokens
        num_output = sum(choice.num_tokens for choice in self._choices)
        return Usage(num_prompt, num_output, num_prompt + num_output, self._cached_tokens())

    def _cached_tokens(self) -> CachedTokens | None:
        """Of each prompt what its first choice found in the cache, once all of them are known."""
        firsts = range(0, len(self._choices), self.job.num_choices)
        finishes = [self._finishes.get(index) for index in firsts]
        known = [finish.num_cached_tokens for finish in finishes if finish is not None]
        return CachedTokens(sum(known)) if len(known) == len(finishes) else None

    def account(self) -> QuireAccount:
        """Of the choices that are shown, by the index they are shown under."""
        shown = enumerate(self._finishes.get(index) for index in self.best())
        return QuireAccount(
            tuple(
                Timing(
                    index,
                    finish.queue_s,
                    finish.prefill_s,
                    finish.decode_s,
                    finish.num_cached_tokens,
                    finish.num_preemptions,
                )
                for index, finish in shown
                if finish is not None
            )
        )


async def merge(
    streams: Sequence[AsyncIterator[Delta]],
) -> AsyncGenerator[tuple[int, Delta], None]:
    """The deltas of all streams with the index of theirs; the first error ends it."""
    if len(streams) == 1:
        async for delta in streams[0]:
            yield 0, delta
        return
    queue: asyncio.Queue[tuple[int, Delta] | None] = asyncio.Queue()

    async def pump(index: int, stream: AsyncIterator[Delta]) -> None:
        try:
            async for delta in stream:
                queue.put_nowait((index, delta))
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(index, each)) for index, each in enumerate(streams)]
    try:
        num_open = len(tasks)
        while num_open:
            item = await queue.get()
            if item is not None:
                yield item
                continue
            num_open -= 1
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
