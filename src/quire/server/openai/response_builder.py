"""Both endpoints' response builders make bodies of output deltas; this is what they share."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import UnsetType

from quire.server.openai.protocol.wire import (
    ChatBody,
    ChatChunk,
    CompletionBody,
    QuireAccount,
    Usage,
)
from quire.server.requests.output_delta import OutputDelta

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def finite(logprob: float) -> float:
    """Return a log probability that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)


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
