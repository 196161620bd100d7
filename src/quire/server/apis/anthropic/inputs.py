"""Parses the bodies of requests for messages, and for how many tokens one would have."""

from dataclasses import replace

import msgspec

from quire.server.apis.anthropic.conversion import ModelReasoning, as_chat
from quire.server.apis.anthropic.protocol import CountTokensRequest, MessagesRequest
from quire.server.apis.anthropic.wire import TokenCount
from quire.server.errors import RequestError
from quire.server.generation.chat_input import chat_tokens, read_named
from quire.server.generation.field_checks import check_model, no_effect_warnings
from quire.server.generation.parsed_input import DirectResponse, TokenizedRequest
from quire.server.generation.protocol.capabilities import COUNT_TOKENS, MESSAGES
from quire.server.generation.protocol.parse import parse_request
from quire.server.models.input_context import InputContext


def parse_message(body: bytes, context: InputContext) -> TokenizedRequest:
    given, no_effect = parse_request(body, MessagesRequest, MESSAGES)
    chat, names, ignored = as_chat(given, _reasoning_of(context))
    read = read_named(chat, names, (*no_effect, *ignored), context)
    return replace(read, keeps_order=True)


def count_tokens(body: bytes, context: InputContext) -> DirectResponse:
    given, no_effect = parse_request(body, CountTokensRequest, COUNT_TOKENS)
    chat, names, ignored = as_chat(given, _reasoning_of(context))
    check_model(chat.model, context)
    try:
        token_ids = chat_tokens(chat, context)
    except RequestError as error:
        raise names.error(error) from None
    body = msgspec.json.encode(TokenCount(len(token_ids)))
    return DirectResponse(body, no_effect_warnings((*no_effect, *ignored)))


def _reasoning_of(context: InputContext) -> ModelReasoning:
    return ModelReasoning(context.tokenizer.template, context.limits.reasoning_format is not None)
