"""From the bytes of a body to prompts in tokens, or to the whole answer where that needs no engine.

Everything here may take long for a large body: `InputReader` decides in which thread or process it
runs, one call for each request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.errors import NOT_FOUND, RequestError
from quire.server.openai.protocol.capabilities import CHAT, COMPLETIONS
from quire.server.openai.protocol.chat import ChatRequest
from quire.server.openai.protocol.completions import CompletionRequest
from quire.server.openai.protocol.parse import parse_object, parse_request, validate
from quire.server.openai.protocol.tokenize import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from quire.server.openai.protocol.wire import Detokenized, Tokenized
from quire.server.requests.job import Prompt
from quire.server.requests.limits import (
    check_chat,
    check_completion,
    check_num_outputs,
    check_shared,
)
from quire.server.requests.prompts import (
    decode_tokens,
    encode_any,
    read_chat,
    read_prompts,
    render_chat,
    unread_kwargs,
)
from quire.server.requests.text_tools import TextTools

MAX_SHOWN_CHARS = 200


class InputKind(StrEnum):
    """What a body is read as."""

    COMPLETION = "completion"
    CHAT = "chat"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


@dataclass(frozen=True, slots=True)
class Prompted:
    """A request for outputs. Its `prompts` are tokens, and `request` no longer holds what they
    were made of; a prompt's text stays where it is to be echoed.
    """

    request: CompletionRequest | ChatRequest
    prompts: tuple[Prompt, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """The JSON of a whole answer."""

    body: bytes
    warnings: tuple[str, ...] = ()


ReadInput: TypeAlias = Prompted | Answered


def read_input(kind: InputKind, body: bytes, tools: TextTools) -> ReadInput:
    """Raises RequestError."""
    return _READERS[kind](body, tools)


def _read_completion(body: bytes, tools: TextTools) -> Prompted:
    request, no_effect = parse_request(body, CompletionRequest, COMPLETIONS)
    _check_model(request.model, tools)
    check_shared(request, tools.facts.vocab_size)
    check_completion(request)
    check_num_outputs(len(request.prompt), request, tools.limits.max_outputs)
    prompts = read_prompts(request, tools)
    if not request.echo:
        prompts = tuple(prompt._replace(text=None) for prompt in prompts)
    return Prompted(
        request.model_copy(update={"prompt": ()}), prompts, _no_effect_warnings(no_effect)
    )


def _read_chat(body: bytes, tools: TextTools) -> Prompted:
    request, no_effect = parse_request(body, ChatRequest, CHAT)
    _check_model(request.model, tools)
    check_shared(request, tools.facts.vocab_size)
    check_chat(request)
    check_num_outputs(1, request, tools.limits.max_outputs)
    warnings = _no_effect_warnings(no_effect) + unread_kwargs(request, tools)
    prompt = read_chat(request, tools)
    kept = request.model_copy(update={"messages": [], "chat_template_kwargs": None})
    return Prompted(kept, (prompt,), warnings)


def _tokenize(body: bytes, tools: TextTools) -> Answered:
    fields = parse_object(body)
    if "messages" in fields:
        return _tokenize_chat(fields, tools)
    asked = validate(fields, TokenizeRequest)
    _check_model(asked.model, tools)
    token_ids = encode_any(
        asked.prompt, "prompt", tools, add_special_tokens=asked.add_special_tokens is not False
    )
    return Answered(_tokenized(token_ids, asked.return_token_strs, tools))


def _tokenize_chat(fields: Mapping[str, object], tools: TextTools) -> Answered:
    asked = validate(fields, TokenizeChatRequest)
    _check_model(asked.model, tools)
    chat = asked.as_chat()
    check_chat(chat)
    text = render_chat(chat, tools)
    token_ids = encode_any(
        text, "messages", tools, add_special_tokens=bool(chat.add_special_tokens)
    )
    body = _tokenized(token_ids, asked.return_token_strs, tools)
    return Answered(body, unread_kwargs(chat, tools))


def _tokenized(token_ids: tuple[int, ...], wants_strs: bool | None, tools: TextTools) -> bytes:
    strs: tuple[str, ...] | UnsetType = UNSET
    if wants_strs:
        of = tools.tokenizer.token_bytes.of
        strs = tuple(of(token_id).decode(errors="replace") for token_id in token_ids)
    reply = Tokenized(len(token_ids), tools.facts.max_model_len, token_ids, strs)
    return msgspec.json.encode(reply)


def _detokenize(body: bytes, tools: TextTools) -> Answered:
    asked = validate(parse_object(body), DetokenizeRequest)
    _check_model(asked.model, tools)
    reply = Detokenized(decode_tokens(tuple(asked.tokens), tools))
    return Answered(msgspec.json.encode(reply))


def _check_model(name: str | None, tools: TextTools) -> None:
    if name is not None and name not in tools.limits.model_names:
        raise model_not_found(name, tools.limits.model_names)


def model_not_found(name: str, model_names: tuple[str, ...]) -> RequestError:
    shown, names = name[:MAX_SHOWN_CHARS], ", ".join(model_names)
    return RequestError(
        f"The model {shown!r} does not exist; this server has {names}.",
        param="model",
        code="model_not_found",
        status=NOT_FOUND,
    )


def _no_effect_warnings(fields: tuple[str, ...]) -> tuple[str, ...]:
    return (f"accepted without effect: {', '.join(fields)}",) if fields else ()


_READERS: Mapping[InputKind, Callable[[bytes, TextTools], ReadInput]] = {
    InputKind.COMPLETION: _read_completion,
    InputKind.CHAT: _read_chat,
    InputKind.TOKENIZE: _tokenize,
    InputKind.DETOKENIZE: _detokenize,
}
