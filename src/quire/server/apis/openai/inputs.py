"""Parses the bodies of completions, chats and the tokenizer's routes."""

from collections.abc import Mapping
from functools import partial

import msgspec

from quire.server.apis.openai.history_fields import known_history
from quire.server.apis.openai.rendering import rendered, tokens_shown
from quire.server.apis.openai.tokenize import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from quire.server.apis.openai.translation import chat_input, text_input
from quire.server.apis.openai.wire import Detokenized
from quire.server.apis.protocol.chat import ChatRequest
from quire.server.apis.protocol.completions import CompletionRequest
from quire.server.apis.protocol.parse import parse_request, validate
from quire.server.apis.protocol.unknown_fields import unknown_fields
from quire.server.errors import RequestError
from quire.server.generation.checks import check_model
from quire.server.generation.parsed_input import DirectResponse, TokenizedRequest
from quire.server.generation.prompts import decode_tokens, encode_any, unread_kwargs
from quire.server.generation.tokenizing import chat_tokens, tokenized
from quire.server.grammars.compose import ANYTHING
from quire.server.http.endpoints import CHAT, COMPLETIONS
from quire.server.http.json_object import parse_object
from quire.server.models.input_context import InputContext


def parse_completion(body: bytes, context: InputContext) -> TokenizedRequest:
    request, no_effect = parse_request(body, CompletionRequest, COMPLETIONS)
    return tokenized(text_input(request, no_effect), context)


def parse_chat(body: bytes, context: InputContext) -> TokenizedRequest:
    unknown = unknown_fields(context)
    request, no_effect = parse_request(
        body, ChatRequest, CHAT, prepare=partial(known_history, unknown=unknown)
    )
    return tokenized(chat_input(request, no_effect, unknown.ignored), context)


def parse_probe(body: bytes, context: InputContext) -> TokenizedRequest:
    """Read what is either a completion or, if it has messages, a chat, of one prompt."""
    is_chat = "messages" in parse_object(body)
    read = (parse_chat if is_chat else parse_completion)(body, context)
    if len(read.prompts) > 1:
        raise RequestError(
            f"The prefix cache is asked about one prompt at a time, not {len(read.prompts)}.",
            param="prompt",
        )
    return read


def tokenize(body: bytes, context: InputContext) -> DirectResponse:
    fields = parse_object(body)
    if "messages" in fields:
        return _tokenize_chat(fields, context)
    request = validate(fields, TokenizeRequest)
    check_model(request.model, context)
    token_ids = encode_any(
        request.prompt,
        "prompt",
        context,
        add_special_tokens=request.add_special_tokens is not False,
    )
    reply = tokens_shown(token_ids, request.return_token_strs, context)
    return DirectResponse(msgspec.json.encode(reply))


def _tokenize_chat(fields: Mapping[str, object], context: InputContext) -> DirectResponse:
    unknown = unknown_fields(context)
    request = validate(known_history(fields, unknown), TokenizeChatRequest)
    check_model(request.model, context)
    chat = chat_input(request.as_chat())
    reply = tokens_shown(chat_tokens(chat, context), request.return_token_strs, context)
    warnings = unread_kwargs(chat, context)
    return DirectResponse(msgspec.json.encode(reply), warnings, unknown.ignored)


def detokenize(body: bytes, context: InputContext) -> DirectResponse:
    request = validate(parse_object(body), DetokenizeRequest)
    check_model(request.model, context)
    reply = Detokenized(decode_tokens(tuple(request.tokens), context))
    return DirectResponse(msgspec.json.encode(reply))


def render_completion(body: bytes, context: InputContext) -> DirectResponse:
    return _rendered(parse_completion(body, context), context)


def render_chat(body: bytes, context: InputContext) -> DirectResponse:
    return _rendered(parse_chat(body, context), context)


def _rendered(read: TokenizedRequest, context: InputContext) -> DirectResponse:
    """Answer with what a request would run with, as the model is given it."""
    reply = rendered(read, context)
    grammar = read.grammar or ANYTHING
    warnings, ignored = read.warnings + grammar.warnings, read.ignored + grammar.loosened
    return DirectResponse(msgspec.json.encode(reply), warnings, ignored)
