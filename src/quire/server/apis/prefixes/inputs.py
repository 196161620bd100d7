"""The prefix that a body gives, in tokens: made as prompts of completions and chats are, so that
these find it."""

from collections.abc import Mapping
from typing import NamedTuple

from quire.server.apis.prefixes.protocol import (
    PrefixChatRequest,
    PrefixFields,
    PrefixTextRequest,
)
from quire.server.errors import RequestError
from quire.server.generation.context import Prompt
from quire.server.generation.field_checks import check_chat, check_generates, check_model
from quire.server.generation.prompts import (
    encode_chat,
    read_prompts,
    render_chat,
    unread_kwargs,
    with_own_template,
)
from quire.server.generation.protocol.parse import validate
from quire.server.generation.reasoning_options import effort_warnings
from quire.server.generation.tools.checks import check_tools
from quire.server.models.input_context import InputContext


class PrefixInput(NamedTuple):
    """A request for a prefix, which no longer holds what its prompt was made of."""

    request: PrefixFields
    prompt: Prompt
    warnings: tuple[str, ...] = ()


def read_prefix(fields: Mapping[str, object], context: InputContext) -> PrefixInput:
    """Return what the fields of a body ask for. Raises RequestError."""
    is_chat = "messages" in fields
    if is_chat and "prompt" in fields:
        raise RequestError(
            "'prompt' and 'messages' exclude each other: a prefix is one of them.", param="prompt"
        )
    read = _read_chat(fields, context) if is_chat else _read_text(fields, context)
    num_tokens, block_size = len(read.prompt.token_ids), context.facts.block_size
    if num_tokens < block_size:
        raise RequestError(
            f"'{read.prompt.field}' has {num_tokens} tokens, and only full blocks of {block_size} "
            "can be pinned.",
            param=read.prompt.field,
            code="prefix_too_short",
        )
    return read


def _read_text(fields: Mapping[str, object], context: InputContext) -> PrefixInput:
    request = validate(fields, PrefixTextRequest)
    check_model(request.model, context)
    check_generates(context)
    if len(request.prompt) > 1:
        raise RequestError(f"A prefix is one prompt, not {len(request.prompt)}.", param="prompt")
    if not request.prompt[0].content:
        raise RequestError("Invalid 'prompt': must not be empty.", param="prompt")
    (prompt,) = read_prompts(request.as_completion(), context)
    return PrefixInput(request.model_copy(update={"prompt": ()}), prompt._replace(text=None))


def _read_chat(fields: Mapping[str, object], context: InputContext) -> PrefixInput:
    request = validate(fields, PrefixChatRequest)
    check_model(request.model, context)
    check_generates(context)
    chat = request.as_chat()
    check_chat(chat)
    context = with_own_template(chat, context)
    check_tools(chat, context)
    prompt = encode_chat(render_chat(chat, context), chat, context)
    warnings = (*unread_kwargs(chat, context), *effort_warnings(chat, context))
    dropped = dict.fromkeys(("tools", "documents", "chat_template", "chat_template_kwargs"))
    kept = request.model_copy(update={"messages": [], **dropped})
    return PrefixInput(kept, prompt._replace(text=None), warnings)
