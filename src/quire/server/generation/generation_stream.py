"""The running generation of one HTTP request: its engine requests are submitted together, and
their outputs come back as one stream of deltas.

However it ends, none of its engine requests outlives it in the engine.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from quire.engine.orders import NoteTurn
from quire.engines.process.token_stream import EngineDown, RequestRefused, TokenStream, merge
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Delta, Finish, PrefillProgress
from quire.server.errors import (
    TOO_MANY,
    DeadlineExceeded,
    EngineGone,
    Overloaded,
    Quarantined,
    RequestError,
)
from quire.server.generation.choice_output import ChoiceOutput
from quire.server.generation.context import Prompt, RequestContext
from quire.server.generation.engine_requests import endpoint_of
from quire.server.generation.output_delta import OutputDelta
from quire.server.generation.service import Service
from quire.server.generation.usage import (
    CachedTokens,
    CompletionTokensDetails,
    PromptProgress,
    QuireAccount,
    Timing,
    Usage,
)
from quire.server.http.trace_context import TraceContext
from quire.server.models.served_model import ServingState
from quire.server.observability.metrics import FinishReason, RequestMeter
from quire.server.observability.request_record import RequestRecord
from quire.server.observability.timelines import Timeline
from quire.server.tenancy.usage_accounts import RequestEnd
from quire.server.text.stop_strings import StopStringTable

_REFUSAL_CODES = {
    Reason.CONTEXT_EXCEEDED: "context_length_exceeded",
    Reason.NEVER_FITS: "never_fits",
    Reason.PROMPT_EMPTY: "invalid_value",
}
CHOICES_PER_ITERATION = 64
"""Choices that are submitted or set up in one iteration of the event loop: some milliseconds."""
_OPERATIONS = {
    **dict.fromkeys(("completions", "prefixes"), "text_completion"),
    **dict.fromkeys(("embeddings", "rerank", "score"), "embeddings"),
}
"""OpenTelemetry's names of what was done, by the name of the API; else chat."""
_FULL = frozenset((Reason.QUEUE_FULL, Reason.OVER_SHARE))


class IndexedDelta(NamedTuple):
    """A delta of the choice with this index."""

    choice: int
    output: OutputDelta


class GenerationStream:
    """Runs a generation: `start` it, then read `deltas` to the end; `abort` may come at any
    time. `on_pause` is called when an engine has ended and another is to go on."""

    def __init__(self, context: RequestContext, service: Service, serving: ServingState) -> None:
        self.context = context
        self._engine = serving.model.engine
        self._submit_lock = serving.model.submit_lock
        self._lifecycle = serving.model.lifecycle
        self._holds_model = False
        self._throttle = service.work_throttle
        self._inputs = service.inputs
        self._metrics = serving.model.metrics
        self._clock = service.sources.clock
        self._timelines = service.timelines
        self._spans = service.spans
        self._rates = context.arrival.tenant.rates
        self._timeline: Timeline | None = None
        self._tokenizer, self._limits = serving.tokenizer, serving.input.limits
        self._choices: list[ChoiceOutput] = []  # once the engine has taken the requests
        self._meters = [
            RequestMeter(self._metrics, context.arrival, request) for request in context.requests
        ]
        self._finishes: dict[int, Finish] = {}
        self._stopped: set[int] = set()
        self._calling: set[int] = set()  # choices that call tools
        self._streams: list[TokenStream] = []
        self.on_pause: Callable[[], None] | None = None

    async def start(self) -> None:
        """Return once the scheduler has taken every request: the model is held from then on, until
        `close`. Raises RequestError if it has not: the prompts are given back to the key's rate
        then."""
        try:
            await self._start()
        except RequestError:
            if self._rates is not None:
                self._rates.give_back_prompt(self.context.num_prompt_tokens)
            raise
        self._lifecycle.hold()
        self._holds_model = True

    async def _start(self) -> None:
        now = self._clock()
        self._timeline = self._timelines.open(self.context, now)
        requests = self._in_time(now)
        try:
            await self._submit(requests)
            self._choices = await self._build_choices()
        except RequestRefused as refused:
            self.abort(None)
            raise self._refusal(refused) from None
        except EngineDown as down:
            self.abort(FinishReason.ERROR)
            raise EngineGone(f"The engine is down: {down}") from None

    async def _build_choices(self) -> list[ChoiceOutput]:
        """Return the outputs of all choices; many are made in several iterations of the loop."""
        context, choices = self.context, []
        stops = StopStringTable(
            context.text_options.stop, include_stop=context.text_options.include_stop
        )
        for index, request in enumerate(context.requests):
            prompt = context.prompt_of(index)
            choices.append(
                ChoiceOutput(
                    context.text_options,
                    prompt,
                    self._tokenizer,
                    stops,
                    request=request,
                )
            )
            if index % CHOICES_PER_ITERATION == CHOICES_PER_ITERATION - 1:
                await self._throttle.wait(context.arrival.tenant.name)
        return choices

    def _in_time(self, now: float) -> tuple[NewRequest, ...]:
        """Return the requests with what is left of their time. Raises DeadlineExceeded."""
        limit_s = self.context.time_limit_s
        if limit_s is None:
            return self.context.requests
        left_s = self.context.arrival.arrived_s + limit_s - now
        if left_s <= 0:
            self.abort(None)
            self._note_refusal(Reason.DEADLINE_HOPELESS)
            raise DeadlineExceeded("The deadline passed before the request reached the engine.")
        return tuple(replace(request, time_limit_s=left_s) for request in self.context.requests)

    def _note_refusal(self, reason: Reason) -> None:
        tenant, accounts = self.context.arrival.tenant.name, self._metrics.accounts
        if reason in _FULL:
            accounts.count_end(tenant, RequestEnd.QUEUE_FULL)
        if reason is Reason.DEADLINE_HOPELESS:
            accounts.count_end(tenant, RequestEnd.DEADLINE_REFUSED)
        if self._timeline is not None:
            self._timeline.refused = reason

    async def _submit(self, requests: tuple[NewRequest, ...]) -> None:
        """Submit all requests or none: the first refusal ends them all."""
        if len(requests) == 1:
            self._streams = [self._engine.submit(requests[0])]
        else:
            async with self._submit_lock:  # where two share what is left, neither gets in
                await self._submit_many(requests)
        for stream in self._streams:
            stream.on_pause = self._pause
            await stream.accepted()

    def _pause(self) -> None:
        if self.on_pause is not None:
            self.on_pause()

    async def _submit_many(self, requests: tuple[NewRequest, ...]) -> None:
        """Submit the requests in several iterations of the event loop."""
        for number, request in enumerate(requests, start=1):
            self._streams.append(self._engine.submit(request))
            if number % CHOICES_PER_ITERATION == 0:
                await self._throttle.wait(self.context.arrival.tenant.name)

    def _refusal(self, refused: RequestRefused) -> RequestError:
        refusal = refused.refusal
        message = f"{refusal.message[:1].upper()}{refusal.message[1:]}."
        self._note_refusal(refusal.reason)
        if refusal.reason is Reason.DEADLINE_HOPELESS:
            return DeadlineExceeded(message, refusal.wait_s)
        if refusal.reason is Reason.QUARANTINED:
            return Quarantined()
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

    def abort(self, reason: FinishReason | None) -> None:
        """End what still runs, and count it under `reason`; a request is counted once."""
        for index, request in enumerate(self.context.requests):
            self._engine.abort(request.id)
            self._meters[index].end(FinishReason.STOP if index in self._stopped else reason)

    def close(self) -> None:
        """Note that nothing more is sent to the client, and hold the model no more."""
        if self._holds_model:
            self._holds_model = False
            self._lifecycle.leave()
        if self._timeline is None:
            return
        self._timeline.ended_s = self._clock()
        trace, figures = self.context.arrival.trace, self.context.arrival.figures
        if figures is not None:
            finishes = [self._finishes[index] for index in sorted(self._finishes)]
            figures.note(
                self.context.model,
                self.context.num_prompt_tokens,
                self.num_cached_tokens(),
                finishes,
            )
        if self._spans is not None and trace is not None:
            self._spans.record(self._record(trace, self._timeline, self._timeline.ended_s))

    def _record(self, trace: TraceContext, timeline: Timeline, ended_s: float) -> RequestRecord:
        """Return what spans are made from."""
        context = self.context
        return RequestRecord(
            trace,
            _OPERATIONS.get(endpoint_of(context.id), "chat"),
            context.id,
            context.model,
            context.num_prompt_tokens,
            timeline.arrived_s,
            timeline.submitted_s,
            ended_s,
            tuple(self._finishes[index] for index in sorted(self._finishes)),
            self.num_cached_tokens(),
        )

    async def deltas(self) -> AsyncGenerator[IndexedDelta, None]:
        """Yield the deltas of all choices as they come. Raises RequestError if the engine fails."""
        for index, choice in enumerate(self._choices):
            opening = choice.begin()
            if opening is not None:
                yield IndexedDelta(index, opening)
        try:
            async with aclosing(merge(self._streams)) as deltas:
                async for index, delta in deltas:
                    if index in self._stopped:
                        self._await_finish(index, delta)
                    else:
                        output = await self._on_delta(index, delta)
                        yield IndexedDelta(index, await self._checked(index, output))
        except EngineDown as down:
            raise EngineGone(f"The engine went down: {down}") from None

    async def _on_delta(self, index: int, delta: Delta) -> OutputDelta:
        if delta.finish is not None:
            self._check_end(delta.finish.reason)
        if delta.token_ids:
            self._meters[index].tokens(len(delta.token_ids), self._clock())
            if self._rates is not None:
                self._rates.charge_output(self._clock(), len(delta.token_ids))
        if delta.vector:
            self._meters[index].vector(self._clock())
        elif delta.finish is not None and self.context.requests[index].pins_prompt:
            self._meters[index].prompt(self._clock())
        choice = self._choices[index]
        num_before = choice.num_reasoning_tokens or 0
        output = await choice.add(delta)
        if delta.prefill is not None:
            output = output._replace(progress=self._progress(index, delta.prefill))
        self._metrics.num_reasoning_tokens += (choice.num_reasoning_tokens or 0) - num_before
        if output.ending is not None:
            self._metrics.on_calls(output.ending.num_whole, output.ending.num_broken)
            if output.ending.calls_tools:
                self._calling.add(index)
            if delta.finish is None:  # a stop string: the engine does not know yet
                self._stopped.add(index)
                self._engine.abort(self.context.requests[index].id)
            else:
                self._close(index, FinishReason(output.ending.finish_reason), delta.finish)
                output = output._replace(timing=_timing(index, delta.finish))
        return output

    async def _checked(self, index: int, output: OutputDelta) -> OutputDelta:
        """Return a delta whose ending says whether the output is of the schema, where its grammar
        did not hold it to all of that."""
        checks = self._choices[index].checks if output.ending is not None else ()
        if output.ending is None or not checks:
            return output
        validity = await self._inputs.validity(checks, self.context.arrival.tenant.name)
        self._metrics.num_loosened_outputs[validity] += 1
        return output._replace(ending=output.ending._replace(validity=validity))

    def _check_end(self, reason: Reason) -> None:
        """Raise RequestError for an end that has an error of its own, and count a grammar's."""
        if reason is Reason.DEADLINE_EXCEEDED:
            self._metrics.num_unfinished += len(self._choices) - len(self._finishes)
            raise DeadlineExceeded("The deadline passed before the output was complete.")
        if reason is Reason.QUARANTINED:
            raise Quarantined
        self._metrics.num_grammar_failed += reason is Reason.GRAMMAR_FAILED

    def _progress(self, index: int, prefill: PrefillProgress) -> PromptProgress:
        """Return how far the prompt of a choice is computed."""
        total = len(self.context.prompt_of(index).token_ids)
        time_ms = 1000 * (self._clock() - self.context.arrival.arrived_s)
        return PromptProgress(total, prefill.num_cached, prefill.num_computed, time_ms)

    def _await_finish(self, index: int, delta: Delta) -> None:
        """Wait for the engine's account of a choice whose text has ended at a stop string."""
        if delta.finish is not None:
            self._close(index, FinishReason.STOP, delta.finish)

    def _close(self, index: int, reason: FinishReason, finish: Finish) -> None:
        self._finishes[index] = finish
        self._meters[index].succeed(reason, finish)
        if self.context.notes_turns and reason is not FinishReason.ABORT:
            request_id = self.context.requests[index].id
            self._engine.order(NoteTurn(request_id, calls_tools=index in self._calling))
        if self.context.requests[index].stopping.max_tokens == 0:
            return
        self._count_prompt(index // self.context.num_choices * self.context.num_choices)

    def _count_prompt(self, first: int) -> None:
        """Count a prompt once all of its choices, of which this is the first, have ended."""
        indices = range(first, first + self.context.num_choices)
        if all(index in self._finishes for index in indices):
            longest = max(self._choices[index].num_tokens for index in indices)
            self._metrics.observe("request_max_num_generation_tokens", longest)
            self._metrics.observe("request_params_n", self.context.num_returned)

    def finish_of(self, index: int) -> Finish | None:
        """Return the engine's account of a choice, once it has ended."""
        return self._finishes.get(index)

    def best(self) -> list[int]:
        """Return the indices of the choices that are sent, prompt by prompt; where some are left
        out, the likeliest come first."""
        num_generated, num_returned = self.context.num_choices, self.context.num_returned
        indices = range(len(self._choices))
        if num_generated == num_returned:
            return list(indices)
        by_prompt = [indices[i : i + num_generated] for i in indices[::num_generated]]
        return [index for indices in by_prompt for index in self._ranked(indices)[:num_returned]]

    def _ranked(self, indices: Sequence[int]) -> list[int]:
        return sorted(indices, key=lambda index: -self._choices[index].mean_logprob)

    def usage(self) -> Usage:
        """Return the token counts of the whole answer so far."""
        num_prompt = self.context.num_prompt_tokens
        num_output = sum(choice.num_tokens for choice in self._choices)
        return Usage(
            num_prompt,
            num_output,
            num_prompt + num_output,
            self._cached_tokens(),
            self._reasoning_tokens(),
        )

    def _reasoning_tokens(self) -> CompletionTokensDetails | UnsetType:
        """Return the tokens of all reasoning so far, where outputs are parsed for it."""
        if self.context.text_options.parsing.reasoning is None:
            return UNSET
        nums = (choice.num_reasoning_tokens or 0 for choice in self._choices)
        return CompletionTokensDetails(sum(nums))

    def _cached_tokens(self) -> CachedTokens | None:
        """Return what the prompts had in the cache, and what of them is in it now, once all are
        known."""
        firsts = range(0, len(self._choices), self.context.num_choices)
        if not all(index in self._finishes for index in firsts):
            return None
        num_written = sum(
            self._num_written(prompt, self._finishes[index])
            for index, prompt in zip(firsts, self.context.prompts, strict=True)
        )
        return CachedTokens(self.num_cached_tokens(), num_written)

    def _num_written(self, prompt: Prompt, finish: Finish) -> int:
        """Return how many tokens of a prompt, in full blocks, its request put into the cache."""
        limits = self._limits
        if not limits.keeps_prefixes:
            return 0
        block_size = limits.facts.block_size
        num_full = len(prompt.token_ids) // block_size * block_size
        return max(num_full - finish.num_cached_tokens, 0)

    def num_cached_tokens(self) -> int:
        """Return what the first choices of the prompts, as far as they have ended, found in the
        cache: the others of a prompt find what its first has computed."""
        firsts = range(0, len(self.context.requests), self.context.num_choices)
        finishes = (self._finishes.get(index) for index in firsts)
        return sum(finish.num_cached_tokens for finish in finishes if finish is not None)

    def account(self) -> QuireAccount:
        """Return the times of the choices that are sent, by the index they are sent under."""
        shown = enumerate(self._finishes.get(index) for index in self.best())
        return QuireAccount(
            tuple(_timing(index, finish) for index, finish in shown if finish is not None)
        )


def _timing(index: int, finish: Finish) -> Timing:
    return Timing(
        index,
        finish.queue_s,
        finish.prefill_s,
        finish.decode_s,
        finish.num_cached_tokens,
        finish.num_preemptions,
    )
