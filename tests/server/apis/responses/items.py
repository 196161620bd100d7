"""Items of a conversation for tests, and what becomes of them."""

from collections.abc import Sequence
from typing import Any

from quire.server.apis.protocol.unknown_fields import UnknownFields
from quire.server.apis.responses.conversion import chat_input, placed_items
from quire.server.apis.responses.history import NO_HISTORY
from quire.server.apis.responses.items.tools import tools_of
from quire.server.apis.responses.protocol import ResponsesRequest
from quire.server.generation.input import ChatInput, InputMessage

Item = dict[str, Any]
ASKED: Item = {"role": "user", "content": "Hello there"}


def read(fields: dict[str, Any], *, refuses: bool = False) -> ChatInput:
    """The input that the fields of a body ask for."""
    request = ResponsesRequest.model_validate({"input": [ASKED], **fields})
    unknown = UnknownFields(refuses=refuses)
    tools = tools_of(request.tools, placed_items(request, NO_HISTORY), unknown)
    return chat_input(request, NO_HISTORY, tools, unknown)


def messages_of(*items: Item) -> list[dict[str, object]]:
    return [each.as_template_message() for each in read({"input": [*items]}).messages]


def texts_of(messages: Sequence[InputMessage]) -> list[str]:
    """The texts of messages in the order in which templates write them."""
    found: list[str] = []
    for message in messages:
        found += [message.reasoning] if message.reasoning else []
        found += [part.text for part in message.parts]
        for call in message.tool_calls:
            found += [call.name, str(call.arguments)]
    return found
