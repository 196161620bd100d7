"""The shape of `POST /v1/completions`: `text_completion` objects."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from quire.server.openai.protocol.wire import (
    CompletionBody,
    CompletionChoice,
    CompletionLogprobs,
    QuireAccount,
    TopLogprobs,
    Usage,
)
from quire.server.openai.shape import finite
from quire.server.requests.job import Job, Logged, Piece
from quire.server.text.token_bytes import TokenBytes


class CompletionShape:
    """One object for the whole answer, and the same object for each chunk of a stream."""

    def __init__(self, job: Job, token_bytes: TokenBytes) -> None:
        self._job = job
        self._token_bytes = token_bytes

    def opening(self, index: int, usage: Usage | None | UnsetType) -> CompletionBody | None:
        if not self._job.text.token_ids:
            return None
        prompt_token_ids = self._job.prompt_of(index).token_ids
        choice = CompletionChoice(index, "", token_ids=(), prompt_token_ids=prompt_token_ids)
        return self._body((choice,), usage)

    def chunk(self, index: int, piece: Piece, usage: Usage | None | UnsetType) -> CompletionBody:
        return self._body((self._choice(index, piece),), usage)

    def closing(self, usage: Usage | None | UnsetType, account: QuireAccount) -> CompletionBody:
        return self._body((), usage, account)

    def whole(
        self, outputs: Sequence[Piece], usage: Usage, account: QuireAccount
    ) -> CompletionBody:
        choices = [self._choice(index, piece) for index, piece in enumerate(outputs)]
        if self._job.text.token_ids:
            choices = [self._with_prompt(choice) for choice in choices]
        return self._body(tuple(choices), usage, account)

    def _body(
        self,
        choices: tuple[CompletionChoice, ...],
        usage: Usage | None | UnsetType = UNSET,
        account: QuireAccount | UnsetType = UNSET,
    ) -> CompletionBody:
        job = self._job
        return CompletionBody(job.id, job.created_s, job.model, choices, usage=usage, quire=account)

    def _choice(self, index: int, piece: Piece) -> CompletionChoice:
        ending = piece.ending
        return CompletionChoice(
            index,
            piece.text,
            self._logprobs(piece.logged) if piece.logged else None,
            None if ending is None else ending.finish_reason,
            None if ending is None else ending.stop_reason,
            piece.token_ids if self._job.text.token_ids else UNSET,
        )

    def _with_prompt(self, choice: CompletionChoice) -> CompletionChoice:
        return CompletionChoice(
            choice.index,
            choice.text,
            choice.logprobs,
            choice.finish_reason,
            choice.stop_reason,
            choice.token_ids,
            self._job.prompt_shown(choice.index).token_ids,
        )

    def _logprobs(self, logged: Sequence[Logged]) -> CompletionLogprobs:
        return CompletionLogprobs(
            tuple(self._token(each.token_id) for each in logged),
            tuple(None if e.logprob is None else finite(e.logprob) for e in logged),
            tuple(self._top(each) for each in logged),
            tuple(each.text_offset for each in logged),
        )

    def _top(self, logged: Logged) -> TopLogprobs | None:
        """The likeliest, and the token itself even where it is not among them."""
        if logged.logprob is None:
            return None
        likely = (*logged.top, (logged.token_id, logged.logprob))
        return {self._token(token_id): finite(logprob) for token_id, logprob in likely}

    def _token(self, token_id: int) -> str:
        """Tokens that are no text are told apart by their bytes, in OpenAI's spelling."""
        raw = self._token_bytes.of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
