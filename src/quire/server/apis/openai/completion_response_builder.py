"""Responses of `POST /v1/completions`: `text_completion` objects."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from quire.engine.grammar.token_bytes import TokenBytes
from quire.server.apis.openai.response_builder import (
    finite,
    prompt_logprobs,
    token_name,
    with_account,
)
from quire.server.apis.openai.wire import (
    CompletionBody,
    CompletionChoice,
    CompletionLogprobs,
    TopLogprobs,
)
from quire.server.generation.context import RequestContext
from quire.server.generation.output_delta import LogprobEntry, OutputDelta, choice_account
from quire.server.generation.usage import QuireAccount, Usage


class CompletionResponseBuilder:
    """Builds one object for a whole answer, and the same object for each chunk of a stream."""

    def __init__(self, context: RequestContext, token_bytes: TokenBytes) -> None:
        self._context = context
        self._token_bytes = token_bytes

    def opening(self, index: int, usage: Usage | None | UnsetType) -> CompletionBody | None:
        if not self._context.text_options.token_ids:
            return None
        prompt_token_ids = self._context.prompt_of(index).token_ids
        choice = CompletionChoice(index, "", token_ids=(), prompt_token_ids=prompt_token_ids)
        return self._body((choice,), usage)

    def chunk(
        self, index: int, delta: OutputDelta, usage: Usage | None | UnsetType
    ) -> CompletionBody:
        return with_account(self._body((self._choice(index, delta),), usage), delta)

    def closing(self, usage: Usage | None | UnsetType, account: QuireAccount) -> CompletionBody:
        return self._body((), usage, account)

    def whole(
        self, outputs: Sequence[OutputDelta], usage: Usage, account: QuireAccount
    ) -> CompletionBody:
        choices = [self._choice(index, delta) for index, delta in enumerate(outputs)]
        if self._context.text_options.token_ids:
            choices = [self._with_prompt(choice) for choice in choices]
        return self._body(tuple(choices), usage, account)

    def _body(
        self,
        choices: tuple[CompletionChoice, ...],
        usage: Usage | None | UnsetType = UNSET,
        account: QuireAccount | UnsetType = UNSET,
    ) -> CompletionBody:
        context = self._context
        return CompletionBody(
            context.id, context.created_s, context.model, choices, usage=usage, quire=account
        )

    def _choice(self, index: int, delta: OutputDelta) -> CompletionChoice:
        ending = delta.ending
        return CompletionChoice(
            index,
            delta.text,
            self._logprobs(delta.logprobs) if delta.logprobs else None,
            None if ending is None else ending.finish_reason,
            None if ending is None else ending.stop_reason,
            delta.token_ids if self._context.text_options.token_ids else UNSET,
            prompt_logprobs=prompt_logprobs(self._context.text_options, delta, self._token_bytes),
            quire=choice_account(ending),
        )

    def _with_prompt(self, choice: CompletionChoice) -> CompletionChoice:
        return CompletionChoice(
            choice.index,
            choice.text,
            choice.logprobs,
            choice.finish_reason,
            choice.stop_reason,
            choice.token_ids,
            self._context.returned_prompt(choice.index).token_ids,
            choice.prompt_logprobs,
            choice.quire,
        )

    def _logprobs(self, logprobs: Sequence[LogprobEntry]) -> CompletionLogprobs:
        return CompletionLogprobs(
            tuple(self._token(each.token_id) for each in logprobs),
            tuple(None if e.logprob is None else finite(e.logprob) for e in logprobs),
            tuple(self._top(each) for each in logprobs),
            tuple(each.text_offset for each in logprobs),
        )

    def _top(self, logprobs: LogprobEntry) -> TopLogprobs | None:
        """Return the likeliest tokens, and the token itself even where it is not among them."""
        if logprobs.logprob is None:
            return None
        likely = (*logprobs.top, (logprobs.token_id, logprobs.logprob))
        return {self._token(token_id): finite(logprob) for token_id, logprob in likely}

    def _token(self, token_id: int) -> str:
        """Return the text of a token; bytes that are no text are written in OpenAI's spelling."""
        if self._context.text_options.names_tokens:
            return token_name(token_id)
        raw = self._token_bytes.of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
