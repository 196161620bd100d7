"""The bytes that the deltas of an answer become are what every protocol has of its own."""

from collections.abc import Sequence
from typing import Protocol

from quire.server.errors import RequestError, error_body
from quire.server.generation.output_delta import OutputDelta


class AnswerWriter(Protocol):
    """Writes the answer of one request, as a stream or as one body. One call comes after the other,
    those for long parts in a thread."""

    def opening(self) -> bytes:
        """Return what a stream begins with, once the engine has taken the request."""

    def chunk(self, choice: int, delta: OutputDelta) -> bytes:
        """Return the events of one delta of one choice, none where it says nothing new."""

    def closing(self) -> bytes:
        """Return the end of a stream whose every choice has ended."""

    def failure(self, error: RequestError) -> bytes:
        """Return the end of a stream that fails in the middle."""

    def whole(self, outputs: Sequence[OutputDelta]) -> bytes:
        """Return the answer as one body; the outputs are those that are sent."""


class UnstreamedWriter:
    """The part of a writer that is the same for all answers of which there is no stream."""

    def opening(self) -> bytes:
        return b""

    def chunk(self, choice: int, delta: OutputDelta) -> bytes:
        return b""

    def closing(self) -> bytes:
        return b""

    def failure(self, error: RequestError) -> bytes:
        return error_body(error)
