"""Parses the bodies of requests for responses, with what they go on from."""

from dataclasses import replace

from quire.server.apis.protocol.parse import parse_request
from quire.server.apis.protocol.unknown_fields import unknown_fields
from quire.server.apis.responses.asked import EchoedFields, asked_of
from quire.server.apis.responses.conversion import chat_input, input_items, placed_items
from quire.server.apis.responses.history import (
    NO_HISTORY,
    History,
    decode_continued,
    needed_history,
)
from quire.server.apis.responses.items.text_grammars import with_enforced_inputs
from quire.server.apis.responses.items.tools import tools_of
from quire.server.apis.responses.protocol import ResponsesRequest
from quire.server.generation.parsed_input import TokenizedRequest
from quire.server.generation.tokenizing import tokenized
from quire.server.http.endpoints import RESPONSES
from quire.server.models.input_context import InputContext


def parse_response(body: bytes, context: InputContext) -> TokenizedRequest:
    return _read_response(body, None, context)


def parse_continued(body: bytes, context: InputContext) -> TokenizedRequest:
    continued = decode_continued(body)
    return _read_response(continued.body, continued.history, context)


def _read_response(body: bytes, history: History | None, context: InputContext) -> TokenizedRequest:
    """Read a request for a response. Raises HistoryNeeded for one that needs a history and comes
    without."""
    given, no_effect = parse_request(body, ResponsesRequest, RESPONSES)
    needed = needed_history(given) if history is None else None
    if needed is not None:
        raise needed
    history, unknown = history or NO_HISTORY, unknown_fields(context)
    tools = tools_of(given.tools, placed_items(given, history), unknown)
    chat = chat_input(given, history, tools, unknown, no_effect)
    read = tokenized(with_enforced_inputs(chat, context, unknown), context)
    return replace(read, asked=asked_of(given, input_items(given, history), tools.renamed))


def asked_in(read: TokenizedRequest) -> EchoedFields:
    """Return what the answer to a request tells of it again."""
    asked = read.asked
    assert isinstance(asked, EchoedFields), "its parser has put it there"
    return asked
