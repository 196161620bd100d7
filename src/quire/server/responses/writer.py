"""The wire form of a response."""

from collections.abc import Sequence

import msgspec

from quire.server.errors import RequestError, error_body
from quire.server.openai.answer_writer import event
from quire.server.openai.chat_response_builder import ChatResponseBuilder
from quire.server.requests.generation_stream import GenerationStream
from quire.server.requests.output_delta import OutputDelta
from quire.server.responses.builder import ResponseRewriter
from quire.server.responses.protocol import ResponsesRequest


class ItemWriter:
    """Writes a response, made of the chat completion of a generation."""

    def __init__(
        self, generation: GenerationStream, builder: ChatResponseBuilder, request: ResponsesRequest
    ) -> None:
        self._generation = generation
        self._builder = builder
        self._rewriter = ResponseRewriter(request)

    def opening(self) -> bytes:
        return b""

    def chunk(self, choice: int, delta: OutputDelta) -> bytes:
        return b""

    def closing(self) -> bytes:
        return b""

    def failure(self, error: RequestError) -> bytes:
        return event(error_body(error))

    def whole(self, outputs: Sequence[OutputDelta]) -> bytes:
        usage, account = self._generation.usage(), self._generation.account()
        chat = self._builder.whole(outputs, usage, account)
        return msgspec.json.encode(self._rewriter.rewrite(chat))
