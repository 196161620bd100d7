"""Responses of `POST /v1/chat/completions`: `chat.completion` objects and chunks."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from quire.server.openai.protocol.wire import (
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessageOut,
    QuireAccount,
    TokenInfo,
    TopToken,
    Usage,
)
from quire.server.openai.response_builder import LEAST_LOGPROB, finite
from quire.server.requests.context import RequestContext
from quire.server.requests.output_delta import LogprobEntry, OutputDelta
from quire.server.text.token_bytes import TokenBytes


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
            ChatDelta(delta.text),
            self._logprobs(delta.logprobs) if delta.logprobs else None,
            None if ending is None else ending.finish_reason,
            None if ending is None else ending.stop_reason,
            delta.token_ids if self._context.text_options.token_ids else UNSET,
        )
        return self._chunk((choice,), usage)

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
            ChatMessageOut(delta.text),
            self._logprobs(delta.logprobs) if delta.logprobs else None,
            None if ending is None else ending.finish_reason,
            None if ending is None else ending.stop_reason,
            delta.token_ids if self._context.text_options.token_ids else UNSET,
        )

    def _logprobs(self, logprobs: Sequence[LogprobEntry]) -> ChatLogprobs:
        return ChatLogprobs(tuple(self._info(each) for each in logprobs))

    def _info(self, logprobs: LogprobEntry) -> TokenInfo:
        raw = self._token_bytes.of(logprobs.token_id)
        top = tuple(self._top_token(token_id, logprob) for token_id, logprob in logprobs.top)
        logprob = LEAST_LOGPROB if logprobs.logprob is None else finite(logprobs.logprob)
        return TokenInfo(raw.decode(errors="replace"), logprob, tuple(raw), top)

    def _top_token(self, token_id: int, logprob: float) -> TopToken:
        raw = self._token_bytes.of(token_id)
        return TopToken(raw.decode(errors="replace"), finite(logprob), tuple(raw))
