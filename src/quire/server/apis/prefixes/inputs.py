"""The prefix that a body gives, in tokens: made as prompts of completions and chats are, so that
these find it."""

import math
from array import array
from collections.abc import Mapping
from dataclasses import replace

from quire.cache.block_hash import TOKEN_CODE
from quire.server.apis.openai.history_fields import known_history
from quire.server.apis.openai.translation import chat_input
from quire.server.apis.prefixes.engine_requests import PrefixBuilder
from quire.server.apis.prefixes.protocol import (
    PrefixChatRequest,
    PrefixFields,
    PrefixTextRequest,
)
from quire.server.apis.protocol.parse import validate
from quire.server.apis.protocol.unknown_fields import unknown_fields
from quire.server.errors import RequestError
from quire.server.generation.checks import check_conversation, check_generates, check_model
from quire.server.generation.context import Prompt, RequestContext
from quire.server.generation.input import OutputOptions, TextInput
from quire.server.generation.parsed_input import TokenizedRequest
from quire.server.generation.prompts import (
    chat_prompt,
    render_chat,
    text_prompts,
    unread_kwargs,
    with_own_template,
)
from quire.server.generation.reasoning_options import effort_warnings
from quire.server.http.json_object import parse_object
from quire.server.models.input_context import InputContext
from quire.server.models.pinned_prefix import PinnedPrefix


def parse_prefix(body: bytes, context: InputContext) -> TokenizedRequest:
    """Read a request for a prefix. Raises RequestError."""
    fields = parse_object(body)
    is_chat = "messages" in fields
    if is_chat and "prompt" in fields:
        raise RequestError(
            "'prompt' and 'messages' exclude each other: a prefix is one of them.", param="prompt"
        )
    read = _read_chat(fields, context) if is_chat else _read_text(fields, context)
    (prompt,) = read.prompts
    num_tokens, block_size = len(prompt.token_ids), context.facts.block_size
    if num_tokens < block_size:
        raise RequestError(
            f"'{prompt.field}' has {num_tokens} tokens, and only full blocks of {block_size} "
            "can be pinned.",
            param=prompt.field,
            code="prefix_too_short",
        )
    return read


def _read_text(fields: Mapping[str, object], context: InputContext) -> TokenizedRequest:
    request = validate(fields, PrefixTextRequest)
    check_model(request.model, context)
    check_generates(context)
    if len(request.prompt) > 1:
        raise RequestError(f"A prefix is one prompt, not {len(request.prompt)}.", param="prompt")
    if not request.prompt[0].content:
        raise RequestError("Invalid 'prompt': must not be empty.", param="prompt")
    options = OutputOptions(add_special_tokens=request.add_special_tokens)
    (prompt,) = text_prompts(TextInput(request.prompt, options), context)
    return _tokenized(request.model_copy(update={"prompt": ()}), prompt)


def _read_chat(fields: Mapping[str, object], context: InputContext) -> TokenizedRequest:
    unknown = unknown_fields(context)
    request = validate(known_history(fields, unknown), PrefixChatRequest)
    check_model(request.model, context)
    check_generates(context)
    chat = chat_input(request.as_chat())
    context = with_own_template(chat, context)
    check_conversation(chat, context)
    prompt = chat_prompt(render_chat(chat, context).text, chat, context)
    warnings = (*unread_kwargs(chat, context), *effort_warnings(chat, context))
    dropped = dict.fromkeys(("tools", "documents", "chat_template", "chat_template_kwargs"))
    kept = request.model_copy(update={"messages": [], **dropped})
    return replace(_tokenized(kept, prompt, warnings), ignored=unknown.ignored)


def _tokenized(
    request: PrefixFields, prompt: Prompt, warnings: tuple[str, ...] = ()
) -> TokenizedRequest:
    prompts = (prompt._replace(text=None),)
    return TokenizedRequest(request, prompts, warnings, pooled=PrefixBuilder(request))


def pinned_prefix(asked: PrefixFields, context: RequestContext) -> PinnedPrefix:
    """Return the prefix that a request asks for, whose `context` says what the engine is asked."""
    (new,), (prompt,) = context.requests, context.prompts
    expires_s = None if asked.ttl_s is None else context.created_s + math.ceil(asked.ttl_s)
    return PinnedPrefix(
        id=context.id,
        tenant=context.arrival.tenant.name,
        model=context.model,
        name=asked.name,
        created_s=context.created_s,
        expires_s=expires_s,
        num_tokens=len(prompt.token_ids),
        pinned_token_ids=array(TOKEN_CODE, new.prompt_token_ids),
        request=replace(new, prompt_token_ids=()),
        request_id=new.id,
    )
