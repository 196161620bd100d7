"""The wire form of completions and chats: chunks as server-sent events, or one body."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.apis.openai.response_builder import ResponseBuilder
from quire.server.errors import RequestError, error_body
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.output_delta import OutputDelta
from quire.server.generation.usage import Usage
from quire.server.http.sliced_json import encode_sliced

MAX_UNSLICED = 500
"""Log probability entries of a chunk that are encoded in one call."""
DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """Return one server-sent event."""
    return b"data: " + data + b"\n\n"


def has_news(delta: OutputDelta) -> bool:
    """Return whether a delta holds something beside token ids."""
    told = (delta.text, delta.ending, delta.logprobs, delta.reasoning, delta.calls, delta.progress)
    return any(told)


class ChunkWriter:
    """Writes what a builder makes of the deltas of a generation."""

    def __init__(self, generation: GenerationStream, builder: ResponseBuilder) -> None:
        self._generation = generation
        self._context = generation.context
        self._builder = builder

    def opening(self) -> bytes:
        usage = self._chunk_usage()
        openings = [self._builder.opening(i, usage) for i in range(len(self._context.requests))]
        return b"".join(event(msgspec.json.encode(each)) for each in openings if each is not None)

    def chunk(self, choice: int, delta: OutputDelta) -> bytes:
        if not (has_news(delta) or (self._context.text_options.token_ids and delta.token_ids)):
            return b""
        chunk = self._builder.chunk(choice, delta, self._chunk_usage())
        if len(delta.logprobs) <= MAX_UNSLICED:
            return event(msgspec.json.encode(chunk))
        choices = tuple(msgspec.Raw(encode_sliced(each, "logprobs")) for each in chunk.choices)
        return event(msgspec.json.encode(msgspec.structs.replace(chunk, choices=choices)))

    def closing(self) -> bytes:
        if not self._context.delivery.include_usage:
            return DONE
        closing = self._builder.closing(self._generation.usage(), self._generation.account())
        return event(msgspec.json.encode(closing)) + DONE

    def failure(self, error: RequestError) -> bytes:
        return event(error_body(error)) + DONE

    def whole(self, outputs: Sequence[OutputDelta]) -> bytes:
        """Encode choice by choice: another thread runs between calls of the encoder, never
        within."""
        usage, account = self._generation.usage(), self._generation.account()
        whole = self._builder.whole(outputs, usage, account)
        choices = tuple(
            msgspec.Raw(encode_sliced(each, "logprobs", "prompt_logprobs"))
            for each in whole.choices
        )
        whole = msgspec.structs.replace(whole, choices=choices)
        return encode_sliced(whole, "prompt_logprobs")

    def _chunk_usage(self) -> Usage | None | UnsetType:
        """Return the usage of a chunk: a stream that ends with it has null until then."""
        delivery = self._context.delivery
        if delivery.continuous_usage:
            return self._generation.usage()
        return None if delivery.include_usage else UNSET
