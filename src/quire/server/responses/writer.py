"""The wire form of a response: typed events that end with the whole of it, or one body."""

from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from quire.server.errors import RequestError
from quire.server.openai.chat_response_builder import ChatResponseBuilder
from quire.server.requests.generation_stream import GenerationStream
from quire.server.requests.output_delta import Ending, OutputDelta
from quire.server.responses import stream_events as events
from quire.server.responses.builder import BodyBuilder
from quire.server.responses.output import OutputItems
from quire.server.responses.protocol import FailureDetails, ResponseBody
from quire.server.responses.stream_events import StreamEvent, encode_event

PREFIX = "resp"
_STATUSES = {"length": "incomplete", "abort": "cancelled"}
"""The status of a response by OpenAI's word for how a chat ends, where it is not completed."""


class ItemWriter:
    """Writes the response of one generation.

    ended: the object of the response once it has ended, and `whole_body` the same as JSON.
    items: the JSON of the items of the output that are complete.
    """

    def __init__(
        self, generation: GenerationStream, tokens: ChatResponseBuilder, body: BodyBuilder
    ) -> None:
        self.ended: ResponseBody | None = None
        self.whole_body: bytes | None = None
        self._generation = generation
        self._body = body
        self._ending: Ending | None = None
        self._numbers = count()
        options = generation.context.text_options
        self._output = OutputItems(
            generation.context.id.removeprefix(PREFIX),
            self._numbers,
            tokens.token_infos,
            is_parsed=options.parsing.is_needed,
        )

    @property
    def items(self) -> tuple[msgspec.Raw, ...]:
        return tuple(self._output.items)

    def opening(self) -> bytes:
        body = self._body.body("in_progress")
        kinds = ("response.created", "response.in_progress")
        return _joined(events.ResponseEvent(next(self._numbers), body, kind) for kind in kinds)

    def chunk(self, choice: int, delta: OutputDelta) -> bytes:
        self._ending = delta.ending or self._ending
        return _joined(self._output.take(delta))

    def closing(self) -> bytes:
        last = _joined(self._end())
        assert self.whole_body is not None
        kind = "response.completed" if self._status == "completed" else "response.incomplete"
        body = msgspec.Raw(self.whole_body)
        return last + encode_event(events.ResponseEvent(next(self._numbers), body, kind))

    def failure(self, error: RequestError) -> bytes:
        """Return what went wrong, and then the response that failed, which keeps what is whole."""
        told = events.ErrorEvent(next(self._numbers), error.message, error.code, error.param)
        body = self.failed(error)
        failed = events.ResponseEvent(next(self._numbers), body, "response.failed")
        return encode_event(told) + encode_event(failed)

    def running(self) -> ResponseBody:
        """Return the object of the response while it runs, or waits for its first token."""
        usage = self._generation.usage()
        return self._body.body("in_progress" if usage.completion_tokens else "queued")

    def stopped(self) -> ResponseBody:
        """Return the object of the response where it was cancelled, and nothing of it is kept."""
        return self._body.body("cancelled", usage=self._generation.usage())

    def failed(self, error: RequestError) -> ResponseBody:
        """Return the object of the response where it fails."""
        details = FailureDetails("server_error", error.message)
        return self._body.body("failed", self.items, self._generation.usage(), details)

    def whole(self, outputs: Sequence[OutputDelta]) -> bytes:
        (output,) = outputs
        self._ending = output.ending
        for _ in self._output.take(output):
            pass
        for _ in self._end():
            pass
        assert self.whole_body is not None
        return self.whole_body

    @property
    def _status(self) -> str:
        reason = "" if self._ending is None else self._ending.finish_reason
        return _STATUSES.get(reason, "completed")

    def _end(self) -> Iterator[StreamEvent]:
        """End the output and make the whole body."""
        status = self._status
        yield from self._output.end("completed" if status == "completed" else "incomplete")
        self.ended = self._body.body(status, self.items, self._generation.usage())
        self.whole_body = msgspec.json.encode(self.ended)


def _joined(made: Iterator[StreamEvent]) -> bytes:
    return b"".join(map(encode_event, made))
