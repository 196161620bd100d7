"""The output of one choice: engine deltas, which are tokens, become output deltas, which are text.

Streams and whole answers are made of the same output deltas, so that they cannot differ.
"""

import asyncio
from collections.abc import Sequence

from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, TokenLogprobs
from quire.scheduler.step import Delta, Finish
from quire.server.errors import SERVER_ERROR, RequestError
from quire.server.generation.context import Prompt, TextOptions
from quire.server.generation.output_delta import Ending, LogprobEntry, OutputDelta
from quire.server.generation.parsed_output import ParsedOutput
from quire.server.grammars.compose import SchemaPromise
from quire.server.grammars.validity import ValueCheck
from quire.server.text.detokenizer import Detokenizer, continues_text
from quire.server.text.stop_strings import StopStringMatcher, StopStringScan, StopStringTable
from quire.server.text.tokenizer import TextTokenizer

MAX_INLINE_TOKENS = 1000
"""An echoed prompt of more tokens is made in a thread, not on the event loop."""
_STOPS = frozenset((Reason.STOP_TOKEN, Reason.END_OF_SEQUENCE))
_LENGTHS = frozenset((Reason.MAX_TOKENS, Reason.CONTEXT_END))
_FAILURES = {
    Reason.NOT_FINITE: "The model's output held NaN or infinity.",
    Reason.GRAMMAR_FAILED: (
        "The grammar of the output went beyond its limits with the tokens of this model, did not "
        "take one of them, or left none to go on with."
    ),
    Reason.STEP_FAILED: (
        "The model failed to compute this request, apart from all others too; the server's log has "
        "the error."
    ),
}
"""The ends of outputs that cannot be used, and what is told of them."""


class PromisedValues:
    """Gathers the answer and the calls of one output, delta by delta."""

    def __init__(self, promises: Sequence[SchemaPromise]) -> None:
        self._schemas = {each.tool: each.schema for each in promises}
        self._text: list[str] = []
        self._names: dict[int, str] = {}
        self._arguments: dict[int, list[str]] = {}

    def add(self, delta: OutputDelta) -> None:
        """Take the next delta of the output."""
        if not self._schemas:
            return
        if delta.text and None in self._schemas:
            self._text.append(delta.text)
        for call in delta.calls:
            if call.name is not None:
                self._names[call.number] = call.name
            self._arguments.setdefault(call.number, []).append(call.arguments)

    def checks(self) -> tuple[ValueCheck, ...]:
        """Return the values with their schemas: of calls, or without any, of the answer."""
        called = [
            (self._schemas.get(self._names.get(number, "")), "".join(parts))
            for number, parts in self._arguments.items()
        ]
        if called:
            return tuple(ValueCheck(schema, text) for schema, text in called if schema is not None)
        answer = self._schemas.get(None)
        return () if answer is None else (ValueCheck(answer, "".join(self._text)),)


class ChoiceOutput:
    """Makes the text of one choice.

    stops: the stop strings of `options`, one table for all choices of a request.
    request: the engine's. Where it asks for them, the echoed prompt waits until its log
        probabilities are there.
    """

    def __init__(
        self,
        options: TextOptions,
        prompt: Prompt,
        tokenizer: TextTokenizer,
        stops: StopStringTable,
        *,
        request: NewRequest,
    ) -> None:
        self.num_tokens = 0
        self._sum_logprobs = 0.0
        self._options = options
        self._prompt = prompt
        self._tokenizer = tokenizer
        skip = options.skip_special_tokens
        goes_on = continues_text(prompt.token_ids, tokenizer.token_bytes, skip_special_tokens=skip)
        self._detokenizer = Detokenizer(
            tokenizer.token_bytes,
            skip_special_tokens=skip,
            at_start=not goes_on,
            shown=frozenset(options.parsing.tags),
        )
        self._parsed = ParsedOutput(options, request.id) if options.parsing.is_needed else None
        self._promised = PromisedValues(options.promises)
        self._stops = StopStringMatcher(stops)
        self._is_echo_due = options.echo
        self._is_scoring_due = options.prompt_logprobs is not None
        self._num_echoed_top = request.sampling.num_logprobs or 0
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._num_chars = 0

    @property
    def mean_logprob(self) -> float:
        """The mean log probability of the tokens so far, as the model gave them."""
        return self._sum_logprobs / max(self.num_tokens, 1)

    @property
    def num_reasoning_tokens(self) -> int | None:
        """The tokens of the reasoning so far, None where it is not told from the content."""
        return None if self._parsed is None else self._parsed.num_reasoning_tokens

    @property
    def checks(self) -> tuple[ValueCheck, ...]:
        """The values so far that are to be of schemas, with those."""
        return () if self._options.drop_output else self._promised.checks()

    def begin(self) -> OutputDelta | None:
        """Return what can be sent before the first delta of the engine, None if nothing can."""
        if not self._is_echo_due or self._options.scores_echo:
            return None
        self._is_echo_due = False
        return OutputDelta(self._echoed_text())

    async def add(self, delta: Delta) -> OutputDelta:
        """Return what a delta of the engine adds to the text. Raises RequestError for an output
        that cannot be used."""
        if delta.finish is not None and delta.finish.reason in _FAILURES:
            reason = delta.finish.reason
            raise RequestError(_FAILURES[reason], code=reason, status=SERVER_ERROR)
        if delta.finish is not None and delta.finish.reason is Reason.PROMPT_COMPUTED:
            return OutputDelta(ending=Ending("stop"), vector=delta.vector)
        self._prompt_logprobs += delta.prompt_logprobs
        scores = self._take_prompt_logprobs()
        echo = await self._echo_when_ready()
        if self._options.drop_output:
            ending = None if delta.finish is None else Ending("length")
            return echo._replace(ending=ending, prompt_logprobs=scores)
        output = self._add_output(delta)
        if self._parsed is not None:
            output = self._parsed.take(output)
        self._promised.add(output)
        return output._replace(
            text=echo.text + output.text,
            logprobs=echo.logprobs + output.logprobs,
            prompt_logprobs=scores,
        )

    def _take_prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Return the log probabilities of the prompt once they are complete, and only once."""
        if not self._is_scoring_due or not self._has_scores:
            return ()
        self._is_scoring_due = False
        return tuple(self._prompt_logprobs)

    @property
    def _has_scores(self) -> bool:
        """Whether the log probabilities of the prompt, whose first token has none, are complete."""
        return len(self._prompt_logprobs) >= len(self._prompt.token_ids) - 1

    def _add_output(self, delta: Delta) -> OutputDelta:
        text, logprobs = "", []
        last = len(delta.token_ids) - 1
        for index, token_id in enumerate(delta.token_ids):
            self.num_tokens += 1
            if delta.logprobs:
                self._sum_logprobs += delta.logprobs[index].logprob
            if delta.logprobs and self._options.logprobs:
                logprobs.append(self._entry(delta.logprobs[index]))
            scan = self._scan(token_id, delta.finish if index == last else None)
            text += self._parse(scan.text, 1)
            if scan.stop is not None or (self._parsed is not None and self._parsed.has_ended):
                ending = Ending("stop", scan.stop)
                return OutputDelta(text, delta.token_ids[: index + 1], tuple(logprobs), ending)
        if delta.finish is None:
            return OutputDelta(text, delta.token_ids, tuple(logprobs))
        text += self._parse(self._stops.flush(), 0)
        ending = _ending(delta.finish, self._stop_of(delta))
        return OutputDelta(text, delta.token_ids, tuple(logprobs), ending)

    def _stop_of(self, delta: Delta) -> str | None:
        """Return the stop string that the last token is, if it is one."""
        return self._options.stop_tokens.get(delta.token_ids[-1]) if delta.token_ids else None

    def _parse(self, text: str, num_tokens: int) -> str:
        if self._parsed is not None:
            self._parsed.feed(text, num_tokens)
        return text

    def _scan(self, token_id: int, finish: Finish | None) -> StopStringScan:
        shown = finish is None or finish.reason not in _STOPS or self._options.include_stop
        # A special token within arguments is a part of them: of a file that the call writes, say.
        in_call = self._parsed is not None and self._parsed.in_call
        shows_all = in_call or token_id in self._options.stop_tokens
        text = self._detokenizer.feed(token_id, shows_all=shows_all) if shown else ""
        if finish is not None:
            text += self._detokenizer.flush()
        self._num_chars += len(text)
        if self.num_tokens <= self._options.min_tokens:
            return StopStringScan(text, None)
        return self._stops.feed(text)

    def _entry(self, logprobs: TokenLogprobs) -> LogprobEntry:
        return LogprobEntry(logprobs.token_id, logprobs.logprob, logprobs.top, self._num_chars)

    async def _echo_when_ready(self) -> OutputDelta:
        """Return the prompt once its log probabilities are complete (the first token has none)."""
        if not self._is_echo_due or not self._has_scores:
            return OutputDelta()
        self._is_echo_due = False
        is_short = len(self._prompt.token_ids) <= MAX_INLINE_TOKENS
        return self._echo() if is_short else await asyncio.to_thread(self._echo)

    def _echo(self) -> OutputDelta:
        token_ids = self._prompt.token_ids
        text = self._echoed_text()
        offsets = self._echo_offsets(text)
        logprobs = [LogprobEntry(token_ids[0], None, (), offsets[0])]
        for each, offset in zip(self._prompt_logprobs, offsets[1:], strict=True):
            top = each.top[: self._num_echoed_top]
            logprobs.append(LogprobEntry(each.token_id, each.logprob, top, offset))
        return OutputDelta(text, (), tuple(logprobs))

    def _echo_offsets(self, text: str) -> list[int]:
        """Return where each token of the prompt begins in its `text`. What a client wrote is echoed
        as it was, with the special tokens in it and without those that were added."""
        is_text, token_bytes = self._prompt.text is not None, self._tokenizer.token_bytes
        detokenizer = Detokenizer(
            token_bytes,
            skip_special_tokens=self._options.skip_special_tokens and not is_text,
            at_start=True,
        )
        offsets, end = [], 0
        for token_id in self._prompt.token_ids:
            offsets.append(end)
            if is_text and token_bytes.is_special(token_id):
                special = token_bytes.of(token_id).decode(errors="replace")
                if not text.startswith(special, end):
                    continue
            end += len(detokenizer.feed(token_id))
        return offsets

    def _echoed_text(self) -> str:
        text = self._prompt.text
        if text is None:
            text = self._tokenizer.decode(
                self._prompt.token_ids, skip_special_tokens=self._options.skip_special_tokens
            )
        self._num_chars += len(text)
        return text


def _ending(finish: Finish, stop: str | None) -> Ending:
    """Return why an output ended whose last token is the stop string `stop`, if it is one."""
    if finish.reason in _LENGTHS:
        return Ending("length")
    if finish.reason is Reason.ABORTED:  # by the client, or by another with its key
        return Ending("abort")
    if finish.reason in _STOPS:
        number = finish.number if finish.reason is Reason.STOP_TOKEN else None
        return Ending("stop", number if stop is None else stop)
    raise RequestError(
        f"The request was ended by the engine: {finish.reason}.",
        code="engine_error",
        status=SERVER_ERROR,
    )
