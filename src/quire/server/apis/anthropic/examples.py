"""Requests for messages that any server answers, and answers as they come."""

from collections.abc import Mapping

import msgspec

from quire.server.apis.anthropic.blocks import BlockStream
from quire.server.apis.anthropic.errors import MessageError
from quire.server.apis.anthropic.wire import (
    EVENTS,
    MessageBody,
    MessageDelta,
    MessageEnding,
    MessageStart,
    MessageStop,
    MessageUsage,
    TextBlock,
    TokenCount,
)
from quire.server.apis.anthropic.writer import events_of
from quire.server.config import BUNDLED_MODEL_NAME as MODEL
from quire.server.parsers.events import ContentDelta

EVENT_TYPES = (*EVENTS, MessageError)
COUNT = TokenCount(7)
_MESSAGES = [{"role": "user", "content": "Say hello."}]
_SCHEMA = {
    "type": "object",
    "properties": {"greeting": {"type": "string", "maxLength": 20}},
    "required": ["greeting"],
    "additionalProperties": False,
}

MESSAGE_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "text": {"messages": _MESSAGES, "max_tokens": 16, "temperature": 0},
    "stream": {"messages": _MESSAGES, "max_tokens": 16, "stream": True},
    "tools": {
        "system": [
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            *_MESSAGES,
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "door"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": "It is open."},
                ],
            },
        ],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "max_tokens": 16,
    },
    "json_schema": {
        "messages": _MESSAGES,
        "max_tokens": 64,
        "output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}},
    },
}
COUNT_REQUESTS: Mapping[str, Mapping[str, object]] = {
    "text": {"system": "Be brief.", "messages": _MESSAGES},
}
MESSAGE = MessageBody(
    "msg-0123456789abcdef",
    MODEL,
    (TextBlock("Hello."),),
    "end_turn",
    None,
    MessageUsage(4, 3),
)
_BLOCKS = BlockStream()
MESSAGE_EVENTS = events_of(
    (
        MessageStart(
            msgspec.structs.replace(MESSAGE, content=(), stop_reason=None, usage=MessageUsage(4, 0))
        ),
        *_BLOCKS.add(ContentDelta("Hello.")),
        *_BLOCKS.end(),
        MessageDelta(MessageEnding("end_turn", None), MESSAGE.usage),
        MessageStop(),
    )
).decode()
