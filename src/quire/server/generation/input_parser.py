"""Parses the bytes of a body: into prompts in tokens, or into the whole answer where that needs no
engine.

Everything here may take long for a large body: `InputReader` decides in which thread or process it
runs, one call for each request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

import msgspec

from quire.scheduler.request import ThinkingBudget
from quire.server.apis.anthropic.conversion import ModelReasoning
from quire.server.apis.anthropic.conversion import as_chat as message_as_chat
from quire.server.apis.anthropic.protocol import CountTokensRequest, MessagesRequest
from quire.server.apis.anthropic.wire import TokenCount
from quire.server.apis.embeddings.inputs import check_embedding, read_inputs
from quire.server.apis.embeddings.protocol import EmbeddingRequest
from quire.server.apis.openai.rendering import rendered, tokenized
from quire.server.apis.openai.tokenize import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from quire.server.apis.openai.wire import Detokenized
from quire.server.apis.prefixes.inputs import read_prefix
from quire.server.apis.prefixes.protocol import PrefixFields
from quire.server.apis.responses.asked import AskedResponse, asked_of
from quire.server.apis.responses.conversion import as_chat, input_items, without_effect
from quire.server.apis.responses.history import (
    NO_HISTORY,
    History,
    decode_continued,
    needed_history,
)
from quire.server.apis.responses.protocol import ResponsesRequest
from quire.server.apis.scoring.inputs import check_scoring, read_pairs, rerank_pairs, score_pairs
from quire.server.apis.scoring.protocol import RerankRequest, ScoreRequest
from quire.server.errors import RequestError
from quire.server.generation.context import Prompt
from quire.server.generation.field_checks import (
    check_chat,
    check_completion,
    check_generates,
    check_model,
    check_num_outputs,
    check_shared,
    no_effect_warnings,
)
from quire.server.generation.output_limits import check_logprobs
from quire.server.generation.prompt_truncation import truncation_warnings
from quire.server.generation.prompts import (
    decode_tokens,
    encode_any,
    encode_chat,
    read_prompts,
    render_chat,
    unread_kwargs,
    with_own_template,
)
from quire.server.generation.protocol.capabilities import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES,
    SCORE,
)
from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.protocol.completions import CompletionRequest
from quire.server.generation.protocol.parse import parse_object, parse_request, validate
from quire.server.generation.reasoning_options import effort_warnings, thinking_budget
from quire.server.generation.structured_outputs import check_structured, output_grammar
from quire.server.generation.token_bans import bad_word_tokens
from quire.server.generation.tools.checks import check_tools
from quire.server.generation.tools.old_functions import names_of, with_tools
from quire.server.generation.tools.parsing import parser_options
from quire.server.grammars.client_names import OWN_NAMES, ClientNames
from quire.server.grammars.compose import Grammar
from quire.server.models.input_context import InputContext
from quire.server.parsers.output_parser import ParserOptions


class InputKind(StrEnum):
    """The kinds of bodies that are parsed."""

    COMPLETION = "completion"
    CHAT = "chat"
    RESPONSE = "response"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    SCORE = "score"
    CONTINUED_RESPONSE = "continued response"
    MESSAGE = "message"
    COUNT_TOKENS = "count tokens"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    RENDER_COMPLETION = "render completion"
    RENDER_CHAT = "render chat"
    CACHE_PROBE = "cache probe"
    PREFIX = "prefix"


PooledRequest: TypeAlias = EmbeddingRequest | RerankRequest | ScoreRequest | PrefixFields
"""A request that ends with its prompts: nothing is generated behind them."""


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """A request for outputs whose `prompts` are tokens. `request` no longer holds what they were
    made of; a prompt's text stays where it is to be echoed. `parsing` says what the outputs are
    parsed for, `grammar` what they must be of, if anything: it is not checked yet.
    `thinking_budget` says how long they may reason, `bad_words` which tokens in a row they never
    hold. `check_s` is how long the grammar's check took.
    `names` are those that the client has for the fields. `asked` is what the answer to a
    request of `/v1/responses` tells of it again, where this chat was one. With `keeps_order` the
    answer tells in which order the parts of the output came.
    """

    request: CompletionRequest | ChatRequest | PooledRequest
    prompts: tuple[Prompt, ...]
    warnings: tuple[str, ...] = ()
    parsing: ParserOptions = ParserOptions()
    grammar: Grammar | None = None
    thinking_budget: ThinkingBudget | None = None
    check_s: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    names: ClientNames = OWN_NAMES
    asked: AskedResponse | None = None
    keeps_order: bool = False


@dataclass(frozen=True, slots=True)
class DirectResponse:
    """A whole answer that needed no engine; `body` is its JSON."""

    body: bytes
    warnings: tuple[str, ...] = ()


ParsedInput: TypeAlias = TokenizedRequest | DirectResponse


def parse_input(kind: InputKind, body: bytes, context: InputContext) -> ParsedInput:
    """Parse a body as `kind` says. Raises RequestError."""
    return _PARSERS[kind](body, context)


def _parse_completion(body: bytes, context: InputContext) -> TokenizedRequest:
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


def _parse_chat(body: bytes, context: InputContext) -> TokenizedRequest:
    given, no_effect = parse_request(body, ChatRequest, CHAT)
    names = names_of(given)
    try:
        chat = with_tools(given)
    except RequestError as error:
        raise names.error(error) from None
    return _read_named(chat, names, no_effect, context)


def _read_named(
    chat: ChatRequest, names: ClientNames, no_effect: tuple[str, ...], context: InputContext
) -> TokenizedRequest:
    """Read what became a chat; `names` are those that the client has for its fields."""
    try:
        read = _read_chat(chat, no_effect, context)
    except RequestError as error:
        raise names.error(error) from None
    grammar = None if read.grammar is None else names.grammar(read.grammar)
    prompts = tuple(prompt._replace(field=names.of(prompt.field)) for prompt in read.prompts)
    return replace(
        read,
        prompts=prompts,
        warnings=tuple(map(names.of, read.warnings)),
        grammar=grammar,
        names=replace(names, origins={}),
    )


def _parse_response(body: bytes, context: InputContext) -> TokenizedRequest:
    return _read_response(body, None, context)


def _parse_continued(body: bytes, context: InputContext) -> TokenizedRequest:
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
    read = _read_named(chat, names, (*no_effect, *without_effect(given)), context)
    asked = asked_of(given, input_items(given, history))
    return replace(read, asked=asked, keeps_order=True)


def _parse_message(body: bytes, context: InputContext) -> TokenizedRequest:
    given, no_effect = parse_request(body, MessagesRequest, MESSAGES)
    chat, names, ignored = message_as_chat(given, _reasoning_of(context))
    read = _read_named(chat, names, (*no_effect, *ignored), context)
    return replace(read, keeps_order=True)


def _count_tokens(body: bytes, context: InputContext) -> DirectResponse:
    given, no_effect = parse_request(body, CountTokensRequest, COUNT_TOKENS)
    chat, names, ignored = message_as_chat(given, _reasoning_of(context))
    check_model(chat.model, context)
    try:
        token_ids = _chat_tokens(chat, context)
    except RequestError as error:
        raise names.error(error) from None
    body = msgspec.json.encode(TokenCount(len(token_ids)))
    return DirectResponse(body, no_effect_warnings((*no_effect, *ignored)))


def _reasoning_of(context: InputContext) -> ModelReasoning:
    return ModelReasoning(context.tokenizer.template, context.limits.reasoning_format is not None)


def _parse_embedding(body: bytes, context: InputContext) -> TokenizedRequest:
    request, no_effect = parse_request(body, EmbeddingRequest, EMBEDDINGS)
    check_model(request.model, context)
    check_embedding(request, context)
    prompts = read_inputs(request, context)
    warnings = no_effect_warnings(no_effect) + truncation_warnings(prompts)
    return TokenizedRequest(request.model_copy(update={"input": ()}), prompts, warnings)


def _parse_rerank(body: bytes, context: InputContext) -> TokenizedRequest:
    request, no_effect = parse_request(body, RerankRequest, RERANK)
    check_model(request.model, context)
    check_scoring(request, context)
    prompts = read_pairs(rerank_pairs(request), request, context)
    kept = request if request.return_documents else request.model_copy(update={"documents": ()})
    return _scored(kept, prompts, no_effect)


def _parse_score(body: bytes, context: InputContext) -> TokenizedRequest:
    request, no_effect = parse_request(body, ScoreRequest, SCORE)
    check_model(request.model, context)
    check_scoring(request, context)
    prompts = read_pairs(score_pairs(request), request, context)
    return _scored(request.model_copy(update={"text_1": (), "text_2": ()}), prompts, no_effect)


def _scored(
    request: RerankRequest | ScoreRequest, prompts: tuple[Prompt, ...], no_effect: tuple[str, ...]
) -> TokenizedRequest:
    warnings = no_effect_warnings(no_effect) + truncation_warnings(prompts)
    return TokenizedRequest(request, prompts, warnings)


def _read_chat(
    request: ChatRequest, no_effect: tuple[str, ...], context: InputContext
) -> TokenizedRequest:
    check_model(request.model, context)
    check_generates(context)
    check_shared(request, context.facts.vocab_size)
    check_logprobs(request, context.limits.max_logprobs)
    check_chat(request)
    context = with_own_template(request, context)
    check_tools(request, context)
    check_structured(request, context.facts)
    check_num_outputs(1, request, context.limits.max_outputs)
    warnings = (
        *no_effect_warnings(no_effect),
        *unread_kwargs(request, context),
        *effort_warnings(request, context),
    )
    text = render_chat(request, context)
    prompt = encode_chat(text, request, context)
    emptied = ("chat_template", "chat_template_kwargs", "tools", "documents")
    dropped: dict[str, object] = {"messages": [], **dict.fromkeys(emptied)}
    parsing = parser_options(request, text, context)
    grammar = output_grammar(request, parsing, text, context)
    kept = request.model_copy(update=dropped)
    budget = thinking_budget(request, parsing, context)
    bad_words = bad_word_tokens(request, grammar, context)
    warnings += truncation_warnings((prompt,))
    return TokenizedRequest(
        kept, (prompt,), warnings, parsing, grammar, budget, bad_words=bad_words
    )


def _tokenize(body: bytes, context: InputContext) -> DirectResponse:
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
    reply = tokenized(_chat_tokens(chat, context), request.return_token_strs, context)
    return DirectResponse(msgspec.json.encode(reply), unread_kwargs(chat, context))


def _chat_tokens(chat: ChatRequest, context: InputContext) -> tuple[int, ...]:
    """Return the tokens of a conversation, which may be somewhat too long for the context."""
    check_chat(chat)
    check_tools(chat, context)
    text = render_chat(chat, context)
    return encode_any(text, "messages", context, add_special_tokens=bool(chat.add_special_tokens))


def _detokenize(body: bytes, context: InputContext) -> DirectResponse:
    request = validate(parse_object(body), DetokenizeRequest)
    check_model(request.model, context)
    reply = Detokenized(decode_tokens(tuple(request.tokens), context))
    return DirectResponse(msgspec.json.encode(reply))


def _parse_probe(body: bytes, context: InputContext) -> TokenizedRequest:
    """Read what is either a completion or, if it has messages, a chat, of one prompt."""
    is_chat = "messages" in parse_object(body)
    read = (_parse_chat if is_chat else _parse_completion)(body, context)
    if len(read.prompts) > 1:
        raise RequestError(
            f"The prefix cache is asked about one prompt at a time, not {len(read.prompts)}.",
            param="prompt",
        )
    return read


def _parse_prefix(body: bytes, context: InputContext) -> TokenizedRequest:
    read = read_prefix(parse_object(body), context)
    return TokenizedRequest(read.request, (read.prompt,), read.warnings)


def _render_completion(body: bytes, context: InputContext) -> DirectResponse:
    return _rendered(_parse_completion(body, context), context)


def _render_chat(body: bytes, context: InputContext) -> DirectResponse:
    return _rendered(_parse_chat(body, context), context)


def _rendered(read: TokenizedRequest, context: InputContext) -> DirectResponse:
    """Answer with what a request would run with, as the model is given it."""
    assert not isinstance(read.request, PooledRequest)
    reply = rendered(read.request, read.prompts, context)
    grammar = () if read.grammar is None else read.grammar.warnings
    return DirectResponse(msgspec.json.encode(reply), read.warnings + grammar)


_PARSERS: Mapping[InputKind, Callable[[bytes, InputContext], ParsedInput]] = {
    InputKind.COMPLETION: _parse_completion,
    InputKind.CHAT: _parse_chat,
    InputKind.RESPONSE: _parse_response,
    InputKind.EMBEDDING: _parse_embedding,
    InputKind.RERANK: _parse_rerank,
    InputKind.SCORE: _parse_score,
    InputKind.CONTINUED_RESPONSE: _parse_continued,
    InputKind.MESSAGE: _parse_message,
    InputKind.COUNT_TOKENS: _count_tokens,
    InputKind.TOKENIZE: _tokenize,
    InputKind.DETOKENIZE: _detokenize,
    InputKind.RENDER_COMPLETION: _render_completion,
    InputKind.RENDER_CHAT: _render_chat,
    InputKind.CACHE_PROBE: _parse_probe,
    InputKind.PREFIX: _parse_prefix,
}
