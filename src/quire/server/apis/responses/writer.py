"""The wire form of a response: typed events that end with the whole of it, or one body."""

from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from quire.server.apis.openai.chat_response_builder import ChatResponseBuilder
from quire.server.apis.responses import stream_events as events
from quire.server.apis.responses.builder import BodyBuilder
from quire.server.apis.responses.output import OutputItems
from quire.server.apis.responses.protocol import Anything, FailureDetails, ResponseBody
from quire.server.apis.responses.stream_events import StreamEvent, encode_event
from quire.server.errors import RequestError
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.output_delta import Ending, OutputDelta, choice_account

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
        self._is_begun = False
        options = generation.context.text_options
        self._output = OutputItems(
            generation.context.id.removeprefix(PREFIX),
            self._numbers,
            tokens.token_infos,
            body.item_options(is_parsed=options.parsing.is_needed),
        )

    @property
    def items(self) -> tuple[msgspec.Raw, ...]:
        return tuple(self._output.items)

    def opening(self) -> bytes:
        return b"".join(self._told(self._body.body("in_progress"), "response.created"))

    def chunk(self, choice: int, delta: OutputDelta) -> bytes:
        """Return the events of a delta. That the response is in progress comes with the first one,
        apart from its creation, since both may be long."""
        self._ending = delta.ending or self._ending
        return b"".join((*self._begun(), *map(encode_event, self._output.take(delta))))

    def closing(self) -> bytes:
        parts = [*self._begun(), *map(encode_event, self._end())]
        assert self.whole_body is not None
        kind = "response.completed" if self._status == "completed" else "response.incomplete"
        return b"".join((*parts, *self._told(msgspec.Raw(self.whole_body), kind)))

    def failure(self, error: RequestError) -> bytes:
        """Return what went wrong, and then the response that failed, which keeps what is whole."""
        told = events.ErrorEvent(next(self._numbers), error.message, error.code, error.param)
        failed = self._told(self.failed(error), "response.failed")
        return b"".join((encode_event(told), *failed))

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

    def _begun(self) -> Iterator[bytes]:
        """Yield that the response is in progress, once."""
        if not self._is_begun:
            self._is_begun = True
            yield from self._told(self._body.body("in_progress"), "response.in_progress")

    def _told(self, body: Anything, kind: str) -> Iterator[bytes]:
        yield encode_event(events.ResponseEvent(next(self._numbers), body, kind))

    @property
    def _status(self) -> str:
        reason = "" if self._ending is None else self._ending.finish_reason
        return _STATUSES.get(reason, "completed")

    def _end(self) -> Iterator[StreamEvent]:
        """End the output and make the whole body."""
        status = self._status
        yield from self._output.end("completed" if status == "completed" else "incomplete")
        account = choice_account(self._ending)
        self.ended = self._body.body(status, self.items, self._generation.usage(), account=account)
        self.whole_body = msgspec.json.encode(self.ended)
