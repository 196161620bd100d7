"""Responses of `POST /v1/chat/completions`: `chat.completion` objects and chunks."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from quire.engine.grammar.token_bytes import TokenBytes
from quire.server.apis.openai.response_builder import (
    LEAST_LOGPROB,
    finite,
    prompt_logprobs,
    token_name,
    with_account,
)
from quire.server.apis.openai.wire import (
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessageOut,
    FunctionOut,
    TokenInfo,
    ToolCallOut,
    TopToken,
)
from quire.server.generation.context import RequestContext
from quire.server.generation.output_delta import (
    CallDelta,
    Ending,
    LogprobEntry,
    OutputDelta,
    choice_account,
)
from quire.server.generation.usage import QuireAccount, Usage


class ChatResponseBuilder:
    """Builds a message for each choice of a whole answer, or the deltas of a stream."""

    def __init__(self, context: RequestContext, token_bytes: TokenBytes) -> None:
        self._context = context
        self._token_bytes = token_bytes

    def opening(self, index: int, usage: Usage | None | UnsetType) -> ChatChunk:
        choice = ChatChunkChoice(index, ChatDelta(content="", role="assistant"))
        context = self._context
        if not context.text_options.token_ids:
            return self._chunk((choice,), usage)
        return ChatChunk(
            context.id,
            context.created_s,
            context.model,
            (choice,),
            usage=usage,
            prompt_token_ids=context.prompt_of(index).token_ids,
        )

    def chunk(self, index: int, delta: OutputDelta, usage: Usage | None | UnsetType) -> ChatChunk:
        ending = delta.ending
        choice = ChatChunkChoice(
            index,
            _chat_delta(delta, old_calls=self._context.text_options.old_calls),
            self._logprobs(delta.logprobs) if delta.logprobs else None,
            self._finish_reason(ending),
            None if ending is None else ending.stop_reason,
            delta.token_ids if self._context.text_options.token_ids else UNSET,
            choice_account(ending),
        )
        return with_account(self._chunk((choice,), usage), delta)

    def closing(self, usage: Usage | None | UnsetType, account: QuireAccount) -> ChatChunk:
        return self._chunk((), usage, account)

    def whole(
        self, outputs: Sequence[OutputDelta], usage: Usage, account: QuireAccount
    ) -> ChatBody:
        context = self._context
        return ChatBody(
            context.id,
            context.created_s,
            context.model,
            tuple(self._choice(index, delta) for index, delta in enumerate(outputs)),
            usage,
            account,
            prompt_token_ids=context.prompts[0].token_ids
            if context.text_options.token_ids
            else UNSET,
            prompt_logprobs=prompt_logprobs(context.text_options, outputs[0], self._token_bytes),
        )

    def _chunk(
        self,
        choices: tuple[ChatChunkChoice, ...],
        usage: Usage | None | UnsetType = UNSET,
        account: QuireAccount | UnsetType = UNSET,
    ) -> ChatChunk:
        context = self._context
        return ChatChunk(
            context.id, context.created_s, context.model, choices, usage=usage, quire=account
        )

    def _choice(self, index: int, delta: OutputDelta) -> ChatChoice:
        ending = delta.ending
        return ChatChoice(
            index,
            _message(delta, old_calls=self._context.text_options.old_calls),
            self._logprobs(delta.logprobs) if delta.logprobs else None,
            self._finish_reason(ending),
            None if ending is None else ending.stop_reason,
            delta.token_ids if self._context.text_options.token_ids else UNSET,
            choice_account(ending),
        )

    def _finish_reason(self, ending: Ending | None) -> str | None:
        if ending is None or not ending.has_calls or ending.finish_reason != "stop":
            return None if ending is None else ending.finish_reason
        return "function_call" if self._context.text_options.old_calls else "tool_calls"

    def token_infos(self, logprobs: Sequence[LogprobEntry]) -> tuple[TokenInfo, ...]:
        """Return log probabilities as they are sent."""
        return tuple(self._info(each) for each in logprobs)

    def _logprobs(self, logprobs: Sequence[LogprobEntry]) -> ChatLogprobs:
        return ChatLogprobs(self.token_infos(logprobs))

    def _info(self, logprobs: LogprobEntry) -> TokenInfo:
        raw = self._token_bytes.of(logprobs.token_id)
        top = tuple(self._top_token(token_id, logprob) for token_id, logprob in logprobs.top)
        logprob = LEAST_LOGPROB if logprobs.logprob is None else finite(logprobs.logprob)
        return TokenInfo(self._token(logprobs.token_id), logprob, tuple(raw), top)

    def _top_token(self, token_id: int, logprob: float) -> TopToken:
        raw = self._token_bytes.of(token_id)
        return TopToken(self._token(token_id), finite(logprob), tuple(raw))

    def _token(self, token_id: int) -> str:
        if self._context.text_options.names_tokens:
            return token_name(token_id)
        return self._token_bytes.of(token_id).decode(errors="replace")


def _message(output: OutputDelta, *, old_calls: bool) -> ChatMessageOut:
    calls = tuple(_call(call) for call in output.calls)
    reasoning = output.reasoning or UNSET
    return ChatMessageOut(
        None if calls and not output.text else output.text,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=calls if calls and not old_calls else UNSET,
        function_call=calls[0].function if calls and old_calls else UNSET,
    )


def _chat_delta(delta: OutputDelta, *, old_calls: bool) -> ChatDelta:
    calls = tuple(msgspec.structs.replace(_call(call), index=call.number) for call in delta.calls)
    reasoning = delta.reasoning or UNSET
    is_other = bool(calls or delta.reasoning)
    return ChatDelta(
        UNSET if is_other and not delta.text else delta.text,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=calls if calls and not old_calls else UNSET,
        function_call=calls[0].function if calls and old_calls else UNSET,
    )


def _call(call: CallDelta) -> ToolCallOut:
    status = "incomplete" if call.is_broken else UNSET
    if call.id is None or call.name is None:
        return ToolCallOut(FunctionOut(call.arguments), status=status)
    function = FunctionOut(call.arguments, call.name)
    return ToolCallOut(function, call.id, "function", status=status)
