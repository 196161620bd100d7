"""The shape of `POST /v1/chat/completions`: `chat.completion` objects and chunks."""

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
from quire.server.openai.shape import LEAST_LOGPROB, finite
from quire.server.requests.job import Job, Logged, Piece
from quire.server.text.token_bytes import TokenBytes


class ChatShape:
    """A message for the whole answer, deltas for a stream."""

    def __init__(self, job: Job, token_bytes: TokenBytes) -> None:
        self._job = job
        self._token_bytes = token_bytes

    def opening(self, index: int, usage: Usage | None | UnsetType) -> ChatChunk:
        choice = ChatChunkChoice(index, ChatDelta(content="", role="assistant"))
        job = self._job
        if not job.text.token_ids:
            return self._chunk((choice,), usage)
        return ChatChunk(
            job.id,
            job.created_s,
            job.model,
            (choice,),
            usage=usage,
            prompt_token_ids=job.prompt_of(index).token_ids,
        )

    def chunk(self, index: int, piece: Piece, usage: Usage | None | UnsetType) -> ChatChunk:
        ending = piece.ending
        choice = ChatChunkChoice(
            index,
            ChatDelta(piece.text),
            self._logprobs(piece.logged) if piece.logged else None,
            None if ending is None else ending.finish_reason,
            None if ending is None else ending.stop_reason,
            piece.token_ids if self._job.text.token_ids else UNSET,
        )
        return self._chunk((choice,), usage)

    def closing(self, usage: Usage | None | UnsetType, account: QuireAccount) -> ChatChunk:
        return self._chunk((), usage, account)

    def whole(self, outputs: Sequence[Piece], usage: Usage, account: QuireAccount) -> ChatBody:
        job = self._job
        return ChatBody(
            job.id,
            job.created_s,
            job.model,
            tuple(self._choice(index, piece) for index, piece in enumerate(outputs)),
            usage,
            account,
            prompt_token_ids=job.prompts[0].token_ids if job.text.token_ids else UNSET,
        )

    def _chunk(
        self,
        choices: tuple[ChatChunkChoice, ...],
        usage: Usage | None | UnsetType = UNSET,
        account: QuireAccount | UnsetType = UNSET,
    ) -> ChatChunk:
        job = self._job
        return ChatChunk(job.id, job.created_s, job.model, choices, usage=usage, quire=account)

    def _choice(self, index: int, piece: Piece) -> ChatChoice:
        ending = piece.ending
        return ChatChoice(
            index,
            ChatMessageOut(piece.text),
            self._logprobs(piece.logged) if piece.logged else None,
            None if ending is None else ending.finish_reason,
            None if ending is None else ending.stop_reason,
            piece.token_ids if self._job.text.token_ids else UNSET,
        )

    def _logprobs(self, logged: Sequence[Logged]) -> ChatLogprobs:
        return ChatLogprobs(tuple(self._info(each) for each in logged))

    def _info(self, logged: Logged) -> TokenInfo:
        raw = self._token_bytes.of(logged.token_id)
        top = tuple(self._top_token(token_id, logprob) for token_id, logprob in logged.top)
        logprob = LEAST_LOGPROB if logged.logprob is None else finite(logged.logprob)
        return TokenInfo(raw.decode(errors="replace"), logprob, tuple(raw), top)

    def _top_token(self, token_id: int, logprob: float) -> TopToken:
        raw = self._token_bytes.of(token_id)
        return TopToken(raw.decode(errors="replace"), finite(logprob), tuple(raw))
