"""Parses the bodies of requests for messages, and for how many tokens one would have."""

import msgspec

from quire.server.apis.anthropic.conversion import ModelReasoning, chat_input
from quire.server.apis.anthropic.protocol import CountTokensRequest, MessagesRequest
from quire.server.apis.anthropic.wire import TokenCount
from quire.server.apis.protocol.parse import parse_request
from quire.server.apis.protocol.unknown_fields import unknown_fields
from quire.server.generation.checks import check_model, no_effect_warnings
from quire.server.generation.parsed_input import DirectResponse, TokenizedRequest
from quire.server.generation.tokenizing import chat_tokens, tokenized
from quire.server.http.endpoints import COUNT_TOKENS, MESSAGES
from quire.server.models.input_context import InputContext


def parse_message(body: bytes, context: InputContext) -> TokenizedRequest:
    given, no_effect = parse_request(body, MessagesRequest, MESSAGES)
    unknown = unknown_fields(context)
    return tokenized(chat_input(given, no_effect, _reasoning_of(context), unknown), context)


def count_tokens(body: bytes, context: InputContext) -> DirectResponse:
    given, no_effect = parse_request(body, CountTokensRequest, COUNT_TOKENS)
    chat = chat_input(given, no_effect, _reasoning_of(context), unknown_fields(context))
    check_model(chat.options.model, context)
    count = TokenCount(len(chat_tokens(chat, context)))
    return DirectResponse(
        msgspec.json.encode(count), no_effect_warnings(chat.no_effect), chat.ignored
    )


def _reasoning_of(context: InputContext) -> ModelReasoning:
    return ModelReasoning(context.tokenizer.template, context.limits.reasoning_format is not None)
