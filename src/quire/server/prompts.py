"""Prompts as tokens, and tokens as text. What is long is worked on in a thread: the event loop has
others to serve."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from quire.server.chat_template import TemplateRefused
from quire.server.errors import RequestError
from quire.server.job import Prompt
from quire.server.limits import check_prompt_ids
from quire.server.protocol.chat import ChatRequest
from quire.server.protocol.completions import CompletionRequest, GivenPrompt
from quire.server.service import Tools
from quire.server.token_bytes import Kind

MAX_INLINE = 2000
"""Characters or tokens that are worked on at once."""
MAX_SHOWN_CHARS = 200

Made = TypeVar("Made")


async def read_prompts(request: CompletionRequest, tools: Tools) -> tuple[Prompt, ...]:
    """The prompts of a completion; what a text begins and ends with is the tokenizer's choice."""
    add_special_tokens = request.add_special_tokens is not False

    def read() -> tuple[Prompt, ...]:
        return tuple(
            _read_prompt(given, tools, add_special_tokens=add_special_tokens)
            for given in request.prompt
        )

    return await _apart(sum(len(each.content) for each in request.prompt), read)


def _read_prompt(given: GivenPrompt, tools: Tools, *, add_special_tokens: bool) -> Prompt:
    content, field = given
    if isinstance(content, str):
        token_ids = encode(content, field, tools, add_special_tokens=add_special_tokens)
        return Prompt(token_ids, field, content)
    check_prompt_ids(content, tools.facts.vocab_size, field)
    return Prompt(content, field)


async def read_chat(request: ChatRequest, tools: Tools) -> Prompt:
    """The conversation through the template, which writes a beginning of sequence where the model
    wants one: the tokenizer adds none, or there would be two."""

    def read() -> Prompt:
        text = render_chat(request, tools)
        add_special_tokens = bool(request.add_special_tokens)
        token_ids = encode(text, "messages", tools, add_special_tokens=add_special_tokens)
        return Prompt(token_ids, "messages")

    return await _apart(_num_chars(request), read)


def _num_chars(request: ChatRequest) -> int:
    return sum(len(message.content) for message in request.messages)


def render_chat(request: ChatRequest, tools: Tools) -> str:
    template = tools.tokenizer.template
    if template is None:
        raise RequestError(
            "This model has no chat template; use /v1/completions.", code="no_chat_template"
        )
    continues = bool(request.continue_final_message)
    adds_prompt = request.add_generation_prompt is not False and not continues
    try:
        return template.render(
            [message.as_templates_know_it() for message in request.messages],
            add_generation_prompt=adds_prompt,
            continue_final_message=continues,
            extra=request.chat_template_kwargs or {},
        )
    except TemplateRefused as error:
        raise RequestError(
            f"The model's chat template does not take these messages: {error}.",
            param="messages",
            code="invalid_messages",
        ) from None


def unread_kwargs(request: ChatRequest, tools: Tools) -> tuple[str, ...]:
    """A warning, if the template looks at some of `chat_template_kwargs` not at all."""
    template = tools.tokenizer.template
    unread = [] if template is None else template.unread(request.chat_template_kwargs or ())
    if not unread:
        return ()
    shown = ", ".join(map(ascii, unread))[:MAX_SHOWN_CHARS]
    return (f"the chat template does not read these chat_template_kwargs: {shown}",)


def encode(text: str, field: str, tools: Tools, *, add_special_tokens: bool) -> tuple[int, ...]:
    _refuse_hopeless(text, field, tools)
    token_ids = tools.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if not token_ids:
        raise RequestError(f"Invalid '{field}': it has no tokens.", param=field)
    if tools.tokenizer.num_tokens > tools.facts.vocab_size:
        # The model has no embedding for some tokens: one of them must not reach the engine.
        check_prompt_ids(token_ids, tools.facts.vocab_size, field)
    return token_ids


async def encode_text(text: str, tools: Tools, *, add_special_tokens: bool) -> tuple[int, ...]:
    """The tokens of any text, also of none or of one that would not fit."""
    tokenizer = tools.tokenizer
    return await _apart(
        len(text), lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens)
    )


async def encode_chat(request: ChatRequest, tools: Tools) -> tuple[int, ...]:
    """The tokens of any conversation, as a prompt of it has them."""

    def read() -> tuple[int, ...]:
        text = render_chat(request, tools)
        return tools.tokenizer.encode(text, add_special_tokens=bool(request.add_special_tokens))

    return await _apart(_num_chars(request), read)


async def decode_tokens(token_ids: tuple[int, ...], tools: Tools) -> str:
    """The text of any tokens that the model has, special ones among them."""

    def decode() -> str:
        check_prompt_ids(token_ids, tools.facts.vocab_size, "tokens")
        return tools.tokenizer.decode(token_ids, skip_special_tokens=False)

    return await _apart(len(token_ids), decode)


async def texts_of(token_ids: tuple[int, ...], tools: Tools) -> list[str]:
    """Each token's own text."""
    of = tools.tokenizer.token_bytes.of
    return await _apart(
        len(token_ids), lambda: [of(id).decode(errors="replace") for id in token_ids]
    )


def _refuse_hopeless(text: str, field: str, tools: Tools) -> None:
    """A text that cannot fit, however well it is encoded, is not worth the work of encoding it."""
    tokenizer, most = tools.tokenizer, tools.facts.max_model_len
    if tokenizer.token_bytes.kind is Kind.OTHER:  # such may make one token of any unknown text
        return
    if len(text) > most * tokenizer.max_token_chars:
        raise RequestError(
            f"The model's context is {most} tokens; a text of {len(text)} characters has at least "
            f"{len(text) // tokenizer.max_token_chars}.",
            param=field,
            code="context_length_exceeded",
        )


async def _apart(length: int, make: Callable[[], Made]) -> Made:
    return make() if length <= MAX_INLINE else await asyncio.to_thread(make)
