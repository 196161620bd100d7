"""Prompts as tokens: texts, token ids, and conversations through the chat template."""

from quire.server.errors import RequestError
from quire.server.openai.protocol.chat import ChatRequest
from quire.server.openai.protocol.completions import CompletionRequest, GivenPrompt
from quire.server.requests.job import Prompt
from quire.server.requests.limits import check_prompt_ids, check_prompt_length
from quire.server.requests.text_tools import TextTools
from quire.server.text.chat_template import TemplateRefused
from quire.server.text.token_bytes import Kind

MAX_SHOWN_CHARS = 200
MIN_COUNTED_CHARS = 2**20
"""Texts up to this length are counted by `/tokenize` even where they cannot fit the context."""


def read_prompts(request: CompletionRequest, tools: TextTools) -> tuple[Prompt, ...]:
    """The prompts of a completion; what a text begins and ends with is the tokenizer's choice."""
    add_special_tokens = request.add_special_tokens is not False
    return tuple(
        _read_prompt(given, tools, add_special_tokens=add_special_tokens)
        for given in request.prompt
    )


def _read_prompt(given: GivenPrompt, tools: TextTools, *, add_special_tokens: bool) -> Prompt:
    content, field = given
    if isinstance(content, str):
        token_ids = encode(content, field, tools, add_special_tokens=add_special_tokens)
        return Prompt(token_ids, field, content)
    check_prompt_length(len(content), field, tools.facts.max_model_len)
    check_prompt_ids(content, tools.facts.vocab_size, field)
    return Prompt(content, field)


def read_chat(request: ChatRequest, tools: TextTools) -> Prompt:
    """The conversation through the template, which writes a beginning of sequence where the model
    wants one: the tokenizer adds none, or there would be two."""
    text = render_chat(request, tools)
    add_special_tokens = bool(request.add_special_tokens)
    token_ids = encode(text, "messages", tools, add_special_tokens=add_special_tokens)
    return Prompt(token_ids, "messages")


def render_chat(request: ChatRequest, tools: TextTools) -> str:
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


def unread_kwargs(request: ChatRequest, tools: TextTools) -> tuple[str, ...]:
    """A warning, if the template looks at some of `chat_template_kwargs` not at all."""
    template = tools.tokenizer.template
    unread = [] if template is None else template.unread(request.chat_template_kwargs or ())
    if not unread:
        return ()
    shown = ", ".join(map(ascii, unread))[:MAX_SHOWN_CHARS]
    return (f"the chat template does not read these chat_template_kwargs: {shown}",)


def encode(text: str, field: str, tools: TextTools, *, add_special_tokens: bool) -> tuple[int, ...]:
    """The tokens of a prompt, of which there is at least one."""
    _refuse_longer(text, field, tools, at_least=0)
    token_ids = tools.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if not token_ids:
        raise RequestError(f"Invalid '{field}': it has no tokens.", param=field)
    check_prompt_length(len(token_ids), field, tools.facts.max_model_len)
    if tools.tokenizer.num_tokens > tools.facts.vocab_size:
        # The model has no embedding for some tokens: one of them must not reach the engine.
        check_prompt_ids(token_ids, tools.facts.vocab_size, field)
    return token_ids


def encode_any(
    text: str, field: str, tools: TextTools, *, add_special_tokens: bool
) -> tuple[int, ...]:
    """The tokens of a text, also of none, and of one that is somewhat too long to fit."""
    _refuse_longer(text, field, tools, at_least=MIN_COUNTED_CHARS)
    return tools.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def decode_tokens(token_ids: tuple[int, ...], tools: TextTools) -> str:
    """The text of any tokens that the model has, special ones among them."""
    check_prompt_ids(token_ids, tools.facts.vocab_size, "tokens")
    return tools.tokenizer.decode(token_ids, skip_special_tokens=False)


def _refuse_longer(text: str, field: str, tools: TextTools, *, at_least: int) -> None:
    """A text that cannot fit, however well it is encoded, is not worth the work of encoding it.

    Texts of up to `at_least` characters are let through.
    """
    tokenizer, most = tools.tokenizer, tools.facts.max_model_len
    if tokenizer.token_bytes.kind is Kind.OTHER:  # such may make one token of any unknown text
        return
    if len(text) > max(most * tokenizer.max_token_chars, at_least):
        raise RequestError(
            f"The model's context is {most} tokens; a text of {len(text)} characters has at least "
            f"{len(text) // tokenizer.max_token_chars}.",
            param=field,
            code="context_length_exceeded",
        )
