"""Parses the bodies of requests for responses, with what they go on from."""

from dataclasses import replace

from quire.server.apis.responses.asked import AskedResponse, asked_of
from quire.server.apis.responses.conversion import as_chat, input_items, without_effect
from quire.server.apis.responses.history import (
    NO_HISTORY,
    History,
    decode_continued,
    needed_history,
)
from quire.server.apis.responses.protocol import ResponsesRequest
from quire.server.generation.chat_input import read_named
from quire.server.generation.parsed_input import TokenizedRequest
from quire.server.generation.protocol.capabilities import RESPONSES
from quire.server.generation.protocol.parse import parse_request
from quire.server.models.input_context import InputContext


def parse_response(body: bytes, context: InputContext) -> TokenizedRequest:
    return _read_response(body, None, context)


def parse_continued(body: bytes, context: InputContext) -> TokenizedRequest:
    continued = decode_continued(body)
    return _read_response(continued.body, continued.history, context)


def _read_response(body: bytes, history: History | None, context: InputContext) -> TokenizedRequest:
    """Read a request for a response. Raises NeedsHistory for one that needs a history and comes
    without."""
    given, no_effect = parse_request(body, ResponsesRequest, RESPONSES)
    needed = needed_history(given) if history is None else None
    if needed is not None:
        raise needed
    history = history or NO_HISTORY
    chat, names = as_chat(given, history)
    read = read_named(chat, names, (*no_effect, *without_effect(given)), context)
    asked = asked_of(given, input_items(given, history))
    return replace(read, asked=asked, keeps_order=True)


def asked_in(tokenized: TokenizedRequest) -> AskedResponse:
    """Return what the answer to a request tells of it again."""
    asked = tokenized.asked
    assert isinstance(asked, AskedResponse), "its parser has put it there"
    return asked
