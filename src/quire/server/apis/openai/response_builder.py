"""Both endpoints' response builders make bodies of output deltas; this is what they share."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from quire.engine.grammar.token_bytes import TokenBytes
from quire.scheduler.request import TokenLogprobs
from quire.server.apis.openai.wire import (
    ChatBody,
    ChatChunk,
    CompletionBody,
    PromptLogprob,
    PromptLogprobs,
)
from quire.server.generation.context import TextOptions
from quire.server.generation.output_delta import OutputDelta
from quire.server.generation.usage import QuireAccount, Usage

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def finite(logprob: float) -> float:
    """Return a log probability that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)


def token_name(token_id: int) -> str:
    """Return what stands for a token's text where `return_tokens_as_token_ids` asks for ids, in
    vLLM's spelling."""
    return f"token_id:{token_id}"


def prompt_logprobs(
    options: TextOptions, delta: OutputDelta, token_bytes: TokenBytes
) -> PromptLogprobs | UnsetType:
    """Return the log probabilities of the prompt in vLLM's form, where they are sent."""
    if options.prompt_logprobs is None:
        return UNSET
    num_top = options.prompt_logprobs
    return (None, *(_by_token(each, num_top, token_bytes) for each in delta.prompt_logprobs))


def _by_token(
    scores: TokenLogprobs, num_top: int, token_bytes: TokenBytes
) -> dict[str, PromptLogprob]:
    """Return the prompt's own token first, then the likeliest ones."""
    top = enumerate(scores.top[:num_top], 1)
    ranked = {token_id: (rank, logprob) for rank, (token_id, logprob) in top}
    own = ranked.pop(scores.token_id, (scores.rank, scores.logprob))
    return {
        str(token_id): PromptLogprob(
            finite(logprob), rank, token_bytes.of(token_id).decode(errors="replace")
        )
        for token_id, (rank, logprob) in ((scores.token_id, own), *ranked.items())
    }


Chunk = TypeVar("Chunk", CompletionBody, ChatChunk)


def with_account(chunk: Chunk, delta: OutputDelta) -> Chunk:
    """Return a chunk that says how far its prompt is computed, and of one with an ending where its
    time went, if that is known."""
    if delta.progress is None and delta.timing is None:
        return chunk
    return msgspec.structs.replace(
        chunk,
        prompt_progress=UNSET if delta.progress is None else delta.progress,
        quire=UNSET if delta.timing is None else QuireAccount((delta.timing,)),
    )


class ResponseBuilder(Protocol):
    """Builds the bodies and chunks of one endpoint."""

    def opening(
        self, index: int, usage: Usage | None | UnsetType
    ) -> CompletionBody | ChatChunk | None:
        """Return the chunk that comes before the first text of a choice, None if there is none."""

    def chunk(
        self, index: int, delta: OutputDelta, usage: Usage | None | UnsetType
    ) -> CompletionBody | ChatChunk:
        """Return the chunk of one delta of one choice."""

    def closing(
        self, usage: Usage | None | UnsetType, account: QuireAccount
    ) -> CompletionBody | ChatChunk:
        """Return the chunk that comes when every choice has ended."""

    def whole(
        self, outputs: Sequence[OutputDelta], usage: Usage, account: QuireAccount
    ) -> CompletionBody | ChatBody:
        """Return the answer as one body."""
