"""How a job's pieces look on the wire: what the two endpoints' shapes have in common."""

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
from quire.server.requests.job import Piece

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


class Shape(Protocol):
    """One endpoint's way of saying the same things."""

    def opening(
        self, index: int, usage: Usage | None | UnsetType
    ) -> CompletionBody | ChatChunk | None:
        """What a stream says of a choice before its first text."""

    def chunk(
        self, index: int, piece: Piece, usage: Usage | None | UnsetType
    ) -> CompletionBody | ChatChunk:
        """A piece of one choice."""

    def closing(
        self, usage: Usage | None | UnsetType, account: QuireAccount
    ) -> CompletionBody | ChatChunk:
        """What a stream says when every choice has ended."""

    def whole(
        self, outputs: Sequence[Piece], usage: Usage, account: QuireAccount
    ) -> CompletionBody | ChatBody:
        """The answer in one body."""
