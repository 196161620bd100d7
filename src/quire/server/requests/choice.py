"""One output on its way to text: engine deltas in, pieces out.

Streams and whole answers are made of the same pieces, so they cannot differ.
"""

import asyncio

from quire.scheduler.reasons import Reason
from quire.scheduler.request import TokenLogprobs
from quire.scheduler.step import Delta, Finish
from quire.server.errors import SERVER_ERROR, RequestError
from quire.server.requests.job import Ending, Logged, Piece, Prompt, TextPlan
from quire.server.text.detokenizer import Detokenizer, continues_text
from quire.server.text.stop_strings import Scan, StopStrings, StopTable
from quire.server.text.tokenizer import TextTokenizer

MANY_TOKENS = 1000
"""Tokens of an echoed prompt that are looked up on the event loop."""
_STOPS = frozenset((Reason.STOP_TOKEN, Reason.END_OF_SEQUENCE))
_LENGTHS = frozenset((Reason.MAX_TOKENS, Reason.CONTEXT_END))


class Choice:
    """`stops` are those of `plan`, one table for all choices of a request.
    `wants_prompt_logprobs`: the echoed prompt waits until its log probabilities are there."""

    def __init__(
        self,
        plan: TextPlan,
        prompt: Prompt,
        tokenizer: TextTokenizer,
        stops: StopTable,
        *,
        wants_prompt_logprobs: bool,
    ) -> None:
        self.num_tokens = 0
        self._sum_logprobs = 0.0
        self._plan = plan
        self._prompt = prompt
        self._tokenizer = tokenizer
        skip = plan.skip_special_tokens
        goes_on = continues_text(prompt.token_ids, tokenizer.token_bytes, skip_special_tokens=skip)
        self._detokenizer = Detokenizer(
            tokenizer.token_bytes, skip_special_tokens=skip, at_start=not goes_on
        )
        self._stops = StopStrings(stops)
        self._owes_echo = plan.echo
        self._waits_for_logprobs = wants_prompt_logprobs
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._num_chars = 0

    @property
    def mean_logprob(self) -> float:
        """Of the tokens so far, as the model drew them."""
        return self._sum_logprobs / max(self.num_tokens, 1)

    def open(self) -> Piece | None:
        """What can be given out before the engine has said anything."""
        if not self._owes_echo or self._waits_for_logprobs:
            return None
        self._owes_echo = False
        return Piece(self._echoed_text())

    async def take(self, delta: Delta) -> Piece:
        """Raises RequestError if the output cannot be used."""
        if delta.finish is not None and delta.finish.reason is Reason.NOT_FINITE:
            raise RequestError(
                "The model's output held NaN or infinity.", code="not_finite", status=SERVER_ERROR
            )
        self._prompt_logprobs += delta.prompt_logprobs
        prompt_piece = await self._take_echo()
        if self._plan.drop_output:
            ending = None if delta.finish is None else Ending("length")
            return prompt_piece._replace(ending=ending)
        output = self._take_output(delta)
        if not prompt_piece.text and not prompt_piece.logged:
            return output
        return output._replace(
            text=prompt_piece.text + output.text, logged=prompt_piece.logged + output.logged
        )

    def _take_output(self, delta: Delta) -> Piece:
        text, logged = "", []
        last = len(delta.token_ids) - 1
        for index, token_id in enumerate(delta.token_ids):
            self.num_tokens += 1
            if delta.logprobs:
                self._sum_logprobs += delta.logprobs[index].logprob
            if delta.logprobs and self._plan.logprobs:
                logged.append(self._log(delta.logprobs[index]))
            scan = self._scan(token_id, delta.finish if index == last else None)
            text += scan.text
            if scan.stop is not None:
                ending = Ending("stop", scan.stop)
                return Piece(text, delta.token_ids[: index + 1], tuple(logged), ending)
        if delta.finish is None:
            return Piece(text, delta.token_ids, tuple(logged))
        text += self._stops.flush()
        return Piece(text, delta.token_ids, tuple(logged), _ending(delta.finish))

    def _scan(self, token_id: int, finish: Finish | None) -> Scan:
        shown = finish is None or finish.reason not in _STOPS or self._plan.include_stop
        text = self._detokenizer.feed(token_id) if shown else ""
        if finish is not None:
            text += self._detokenizer.flush()
        self._num_chars += len(text)
        if self.num_tokens <= self._plan.min_tokens:
            return Scan(text, None)
        return self._stops.feed(text)

    def _log(self, logprobs: TokenLogprobs) -> Logged:
        return Logged(logprobs.token_id, logprobs.logprob, logprobs.top, self._num_chars)

    async def _take_echo(self) -> Piece:
        """The prompt, once its log probabilities are complete (the first token has none)."""
        num_tokens = len(self._prompt.token_ids)
        if not self._owes_echo or len(self._prompt_logprobs) < num_tokens - 1:
            return Piece()
        self._owes_echo = False
        return self._echo() if num_tokens <= MANY_TOKENS else await asyncio.to_thread(self._echo)

    def _echo(self) -> Piece:
        token_ids = self._prompt.token_ids
        text = self._echoed_text()
        offsets = self._echo_offsets(text)
        logged = [Logged(token_ids[0], None, (), offsets[0])]
        for each, offset in zip(self._prompt_logprobs, offsets[1:], strict=True):
            logged.append(Logged(each.token_id, each.logprob, each.top, offset))
        return Piece(text, (), tuple(logged))

    def _echo_offsets(self, text: str) -> list[int]:
        """Where each token of the prompt begins in its `text`. What a client wrote is echoed as it
        was, with the special tokens in it and without those that were added."""
        is_text, token_bytes = self._prompt.text is not None, self._tokenizer.token_bytes
        detokenizer = Detokenizer(
            token_bytes,
            skip_special_tokens=self._plan.skip_special_tokens and not is_text,
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
                self._prompt.token_ids, skip_special_tokens=self._plan.skip_special_tokens
            )
        self._num_chars += len(text)
        return text


def _ending(finish: Finish) -> Ending:
    if finish.reason in _LENGTHS:
        return Ending("length")
    if finish.reason in _STOPS:
        is_token = finish.reason is Reason.STOP_TOKEN
        return Ending("stop", finish.number if is_token else None)
    raise RequestError(
        f"The request was ended by the engine: {finish.reason}.",
        code="engine_error",
        status=SERVER_ERROR,
    )
