"""Parses the bodies of completions, chats and the tokenizer's routes."""

from collections.abc import Mapping

import msgspec

from quire.server.apis.openai.rendering import rendered, tokenized
from quire.server.apis.openai.tokenize import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from quire.server.apis.openai.wire import Detokenized
from quire.server.errors import RequestError
from quire.server.generation.chat_input import chat_tokens, read_named
from quire.server.generation.field_checks import (
    check_completion,
    check_generates,
    check_model,
    check_num_outputs,
    check_shared,
    no_effect_warnings,
)
from quire.server.generation.output_limits import check_logprobs
from quire.server.generation.parsed_input import DirectResponse, TokenizedRequest
from quire.server.generation.prompt_truncation import truncation_warnings
from quire.server.generation.prompts import decode_tokens, encode_any, read_prompts, unread_kwargs
from quire.server.generation.protocol.capabilities import CHAT, COMPLETIONS
from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.protocol.completions import CompletionRequest
from quire.server.generation.protocol.parse import parse_object, parse_request, validate
from quire.server.generation.structured_outputs import check_structured, output_grammar
from quire.server.generation.token_bans import bad_word_tokens
from quire.server.generation.tools.old_functions import names_of, with_tools
from quire.server.models.input_context import InputContext
from quire.server.parsers.output_parser import ParserOptions


def parse_completion(body: bytes, context: InputContext) -> TokenizedRequest:
    request, no_effect = parse_request(body, CompletionRequest, COMPLETIONS)
    check_model(request.model, context)
    check_generates(context)
    check_shared(request, context.facts.vocab_size)
    check_logprobs(request, context.limits.max_logprobs)
    check_completion(request)
    check_structured(request, context.facts)
    check_num_outputs(len(request.prompt), request, context.limits.max_outputs)
    prompts = read_prompts(request, context)
    if not request.echo:
        prompts = tuple(prompt._replace(text=None) for prompt in prompts)
    kept = request.model_copy(update={"prompt": (), "suffix": None})
    grammar = output_grammar(request, ParserOptions(), "", context)
    bad_words = bad_word_tokens(request, grammar, context)
    warnings = no_effect_warnings(no_effect) + truncation_warnings(prompts)
    return TokenizedRequest(kept, prompts, warnings, grammar=grammar, bad_words=bad_words)


def parse_chat(body: bytes, context: InputContext) -> TokenizedRequest:
    given, no_effect = parse_request(body, ChatRequest, CHAT)
    names = names_of(given)
    try:
        chat = with_tools(given)
    except RequestError as error:
        raise names.error(error) from None
    return read_named(chat, names, no_effect, context)


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
    reply = tokenized(token_ids, request.return_token_strs, context)
    return DirectResponse(msgspec.json.encode(reply))


def _tokenize_chat(fields: Mapping[str, object], context: InputContext) -> DirectResponse:
    request = validate(fields, TokenizeChatRequest)
    check_model(request.model, context)
    chat = with_tools(request.as_chat())
    reply = tokenized(chat_tokens(chat, context), request.return_token_strs, context)
    return DirectResponse(msgspec.json.encode(reply), unread_kwargs(chat, context))


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
    assert isinstance(read.request, CompletionRequest | ChatRequest)
    reply = rendered(read.request, read.prompts, context)
    grammar = () if read.grammar is None else read.grammar.warnings
    return DirectResponse(msgspec.json.encode(reply), read.warnings + grammar)
