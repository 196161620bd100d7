"""Requests for responses that any server answers, and answers as they come."""

from collections.abc import Iterator, Mapping
from itertools import count

from quire.server.apis.descriptions import CREATED_S
from quire.server.apis.responses import stream_events as events
from quire.server.apis.responses.asked import asked_of
from quire.server.apis.responses.builder import BodyBuilder, Origin
from quire.server.apis.responses.protocol import ItemList, MessageItem, OutputText, ResponsesRequest
from quire.server.apis.responses.stream_events import StreamEvent, encode_event
from quire.server.config import BUNDLED_MODEL_NAME as MODEL
from quire.server.generation.usage import CachedTokens, Usage

RESPONSE_ID = "resp-0123456789abcdef0123456789abcdef"
_ITEM_ID = "msg-0123456789abcdef0123456789abcdef-0"
_TEXT = "Hello."

RESPONSE_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "text": {"input": "Say hello.", "max_output_tokens": 16},
    "stream": {"input": "Say hello.", "max_output_tokens": 16, "stream": True},
    "background": {"input": "Say hello.", "max_output_tokens": 16, "background": True},
    "items": {
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Say hello."}]}],
        "max_output_tokens": 16,
    },
    "custom tool": {
        "input": "Say hello in a file.",
        "tools": [{"type": "custom", "name": "patch"}, {"type": "web_search"}],
        "truncation": "auto",
        "store": False,
        "max_output_tokens": 16,
    },
    "namespace": {
        "input": "Read it.",
        "tools": [
            {
                "type": "namespace",
                "name": "files",
                "description": "Files.",
                "tools": [{"type": "function", "name": "read"}],
            }
        ],
        "max_output_tokens": 16,
    },
    "calls": {
        "input": [
            {"role": "user", "content": "Say hello in a file."},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "A file."}]},
            {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "+Hello."},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done."},
        ],
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 16,
    },
}
_BUILDER = BodyBuilder(
    asked_of(ResponsesRequest(input="Say hello.")),
    Origin(RESPONSE_ID, CREATED_S, MODEL, is_stored=True),
)
_MESSAGE = MessageItem(_ITEM_ID, "completed", (OutputText(_TEXT),))
RESPONSE = _BUILDER.body("completed", (_MESSAGE,), Usage(4, 3, 7, CachedTokens(0)))

INPUT_ID = "msg-0123456789abcdef0123456789abcdef-in0"
_INPUT_ITEM = {
    "id": INPUT_ID,
    "type": "message",
    "status": "completed",
    "role": "user",
    "content": [{"type": "input_text", "text": "Say hello."}],
}
INPUT_ITEMS = ItemList((_INPUT_ITEM,), INPUT_ID, INPUT_ID, has_more=False)


def _stream() -> Iterator[StreamEvent]:
    """Yield the events of a short response."""
    numbers, begun = count(), _BUILDER.body("in_progress")
    yield events.ResponseEvent(next(numbers), begun, "response.created")
    yield events.ResponseEvent(next(numbers), begun, "response.in_progress")
    yield events.ItemAdded(next(numbers), 0, MessageItem(_ITEM_ID, "in_progress", ()))
    yield events.PartAdded(next(numbers), 0, _ITEM_ID, OutputText(""))
    yield events.TextDelta(next(numbers), 0, _ITEM_ID, _TEXT)
    yield events.TextDone(next(numbers), 0, _ITEM_ID, _TEXT)
    yield events.PartDone(next(numbers), 0, _ITEM_ID, OutputText(_TEXT))
    yield events.ItemDone(next(numbers), 0, _MESSAGE)
    yield events.ResponseEvent(next(numbers), RESPONSE, "response.completed")


RESPONSE_EVENTS = b"".join(map(encode_event, _stream())).decode()
