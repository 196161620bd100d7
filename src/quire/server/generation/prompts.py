"""Makes tokens of prompts: of texts, of token ids, of conversations through the chat template.
`truncate_prompt_tokens` cuts them where the client asks for it, or a conversation loses its oldest
turns, and nothing else does."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from quire.engine.grammar.token_bytes import TokenizerKind
from quire.server.errors import ContextLengths, ContextTooLong, RequestError
from quire.server.generation.checks import (
    call_format,
    check_prompt_length,
    check_token_ids,
    prompt_too_long,
)
from quire.server.generation.context import Prompt
from quire.server.generation.input import (
    ChatInput,
    GivenPrompt,
    Input,
    InputMessage,
    OutputOptions,
    TextInput,
    TextPart,
    TruncationSide,
)
from quire.server.generation.reasoning_options import template_kwargs
from quire.server.generation.system_turns import RenderedTurns, render_turns
from quire.server.generation.text_tools import render_with_tools
from quire.server.models.input_context import InputContext
from quire.server.text.bounded_work import bounded_work
from quire.server.text.chat_template import TemplateRefused
from quire.server.text.infilling import STYLES, encode_suffix, find_infilling

MAX_SHOWN_CHARS = 200
MIN_COUNTED_CHARS = 2**20
"""Texts up to this length are counted by `/tokenize`, and cut where a client asks for that, though
they cannot fit the context."""
OTHER_TEXT = "QUIRE_SAYS_SOMETHING_ELSE"
"""Text that no conversation has."""
WHAT_FITS = -1
"""Asks for as many tokens as the context holds beside the output."""


class Truncation(NamedTuple):
    """The most tokens, 1 or more, that are left of a prompt, and the side that is cut. A beginning
    of sequence, `bos_token_id`, stays and is counted; None where the model has none."""

    most: int
    side: TruncationSide
    bos_token_id: int | None

    def cut(self, prompt: Prompt) -> Prompt:
        """Return what is left. Where that is not all, it has lost the text it was made of."""
        token_ids = prompt.token_ids
        num_cut = len(token_ids) - self.most
        if num_cut <= 0:
            return prompt
        left = token_ids[: self.most]
        if self.side is TruncationSide.LEFT:
            num_kept = int(token_ids[0] == self.bos_token_id)
            left = token_ids[:num_kept] + token_ids[num_cut + num_kept :]
        return prompt._replace(token_ids=left, text=None, num_cut=num_cut)


def truncation_of(given: Input, context: InputContext) -> Truncation | None:
    """Return how the prompts of an input are cut, None where they are not. Raises RequestError."""
    most, side = given.options.truncate_prompt_tokens, given.options.truncation_side
    if most is None:
        return None
    if side is TruncationSide.RIGHT and isinstance(given, ChatInput):
        raise RequestError(
            "Invalid 'truncation_side': must be 'left' for a chat, whose last tokens begin the "
            "answer.",
            param="truncation_side",
        )
    if most == WHAT_FITS:
        most = _num_that_fit(given.options, context.facts.max_model_len)
    return Truncation(most, side or TruncationSide.LEFT, context.tokenizer.bos_token_id)


def check_truncation(most: int | None, side: TruncationSide | None) -> None:
    """Check the fields of a request that say how its prompts are cut. Raises RequestError."""
    if most is None and side is not None:
        raise RequestError(
            "'truncation_side' is only allowed with 'truncate_prompt_tokens'.",
            param="truncation_side",
        )
    if most == 0:
        raise RequestError(
            "Invalid 'truncate_prompt_tokens': must be 1 or more, or -1 for what fits.",
            param="truncate_prompt_tokens",
        )


def _num_that_fit(options: OutputOptions, max_model_len: int) -> int:
    """Return the tokens of the context that the output leaves, of which it wants at least one."""
    asked = options.default_max_tokens if options.max_tokens is None else options.max_tokens
    num_outputs = max(asked or 1, 1)
    if num_outputs >= max_model_len:
        raise RequestError(
            f"The model's context is {max_model_len} tokens and the output is asked to have up to "
            f"{num_outputs}: no room is left for a prompt.",
            param=options.path("max_tokens"),
            code="context_length_exceeded",
        )
    return max_model_len - num_outputs


def truncation_warnings(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """Return a warning that says what was cut, if anything was."""
    cut = [prompt.num_cut for prompt in prompts if prompt.num_cut]
    if not cut:
        return ()
    of = f" of {len(cut)} prompts" if len(prompts) > 1 else ""
    return (f"truncate_prompt_tokens cut {sum(cut)} prompt tokens{of}",)


def text_prompts(text: TextInput, context: InputContext) -> tuple[Prompt, ...]:
    """Return the prompts of an input in tokens. Raises RequestError.

    The tokenizer chooses the tokens that a text begins and ends with.
    """
    add_special_tokens = text.options.add_special_tokens is not False
    truncation = truncation_of(text, context)
    prompts = tuple(
        _read_prompt(given, context, truncation, add_special_tokens=add_special_tokens)
        for given in text.prompts
    )
    return _infilled(prompts, text.suffix, context) if text.suffix else prompts


def _beginning(given: GivenPrompt, context: InputContext, *, add_special_tokens: bool) -> Prompt:
    """Return the prompt of a suffix that stands at the beginning of a text."""
    token_ids = context.tokenizer.encode("", add_special_tokens=add_special_tokens)
    return Prompt(token_ids, given.field)


def _infilled(
    prompts: tuple[Prompt, ...], suffix: str, context: InputContext
) -> tuple[Prompt, ...]:
    """Return the prompts as the model wants them that writes what stands before `suffix`."""
    infilling = find_infilling(context.tokenizer)
    if infilling is None:
        raise RequestError(
            "This model's tokenizer has no tokens to fill in the middle, such as "
            f"'{STYLES[0].before_prefix}': 'suffix' would be lost.",
            param="suffix",
            code="unsupported_parameter",
        )
    refuse_longer(suffix, "suffix", context, at_least=0)
    suffix_ids = encode_suffix(suffix, context.tokenizer)
    bos, most = context.tokenizer.bos_token_id, context.facts.max_model_len
    made = []
    for prompt in prompts:
        num_bos = int(prompt.token_ids[:1] == (bos,))
        begins, prefix = prompt.token_ids[:num_bos], prompt.token_ids[num_bos:]
        token_ids = (*begins, *infilling.join(prefix, suffix_ids))
        check_prompt_length(len(token_ids), prompt.field, most)
        check_token_ids(token_ids, context.facts.vocab_size, "suffix")
        made.append(prompt._replace(token_ids=token_ids, text=None))
    return tuple(made)


def _read_prompt(
    given: GivenPrompt,
    context: InputContext,
    truncation: Truncation | None,
    *,
    add_special_tokens: bool,
) -> Prompt:
    content, field = given
    if not content:
        return _beginning(given, context, add_special_tokens=add_special_tokens)
    if isinstance(content, str):
        return encode(content, field, context, truncation, add_special_tokens=add_special_tokens)
    most = context.facts.max_model_len
    if truncation is None:
        check_prompt_length(len(content), field, most)
    check_token_ids(content, context.facts.vocab_size, field)
    return _cut(Prompt(content, field), truncation, most)


def chat_prompt(text: str, chat: ChatInput, context: InputContext) -> Prompt:
    """Return a conversation, which the template has written, in tokens. Raises RequestError.

    The template writes a beginning of sequence where the model wants one: the tokenizer adds none,
    or there would be two.
    """
    truncation = truncation_of(chat, context)
    prompt = encode(
        text,
        chat.path("messages"),
        context,
        truncation,
        add_special_tokens=bool(chat.options.add_special_tokens),
    )
    return prompt._replace(text=chat.messages[-1].text if chat.echo else None)


class WrittenChat(NamedTuple):
    """A conversation as the template writes it, and in tokens. `warnings` tell the client what was
    dropped of it."""

    rendered: RenderedTurns
    prompt: Prompt
    warnings: tuple[str, ...] = ()


def write_chat(chat: ChatInput, context: InputContext) -> WrittenChat:
    """Return a conversation in tokens; of one that `drops_turns`, as many of its last turns as the
    context holds beside the output. Raises RequestError.

    Finds the turns by bisection: each try writes and encodes the conversation once.
    """
    if not chat.drops_turns:
        return _written(chat, context)
    starts = _turn_starts(chat.messages)
    fewest, most = 0, max(len(starts) - 1, 0)
    found: WrittenChat | None = None
    num_dropped = 0
    while found is None or fewest < most:
        try:
            written = _fitting(_without_turns(chat, starts, num_dropped), context)
        except ContextTooLong:
            if num_dropped == most:
                raise
            fewest = num_dropped + 1
        else:
            found, most = written, num_dropped
        num_dropped = (fewest + most) // 2 if found is not None else most
    return found._replace(warnings=_warnings(chat.messages, starts, most))


def _written(chat: ChatInput, context: InputContext) -> WrittenChat:
    rendered = render_chat(chat, context)
    return WrittenChat(rendered, chat_prompt(rendered.text, chat, context))


def _fitting(chat: ChatInput, context: InputContext) -> WrittenChat:
    """Return a conversation in tokens. Raises ContextTooLong if the output has no room."""
    written, most = _written(chat, context), context.facts.max_model_len
    num_tokens = len(written.prompt.token_ids)
    if num_tokens > _num_that_fit(chat.options, most):
        why = "with the output it is too long, though all turns but the last are dropped"
        raise prompt_too_long(num_tokens, written.prompt.field, most, why)
    return written


def _turn_starts(messages: Sequence[InputMessage]) -> list[int]:
    """Return the indices at which turns begin: with the user's messages, those in a row as one."""
    return [
        index
        for index, message in enumerate(messages)
        if message.role == "user" and (index == 0 or messages[index - 1].role != "user")
    ]


def _without_turns(chat: ChatInput, starts: Sequence[int], num_dropped: int) -> ChatInput:
    """Return a conversation without its first turns. What the system says stays."""
    if not num_dropped:
        return chat
    first = starts[num_dropped]
    kept = tuple(each for each in chat.messages[:first] if each.role == "system")
    return replace(chat, messages=kept + chat.messages[first:])


def _warnings(
    messages: Sequence[InputMessage], starts: Sequence[int], num_dropped: int
) -> tuple[str, ...]:
    if not num_dropped:
        return ()
    dropped = [each for each in messages[: starts[num_dropped]] if each.role != "system"]
    return (
        f"truncation dropped {num_dropped} of {len(starts)} turns, from {dropped[0].path} to "
        f"{dropped[-1].path}",
    )


class WorkerNeeded(Exception):
    """The request brings a chat template, which only a worker process renders: it may take any
    time."""


def with_own_template(chat: ChatInput, context: InputContext) -> InputContext:
    """Return the context with the request's own chat template, if it brings one. Raises
    RequestError, and WorkerNeeded outside of one."""
    source = chat.template.source
    if source is None:
        return context
    if not context.limits.trusts_chat_template:
        raise RequestError(
            "This server renders its model's own chat template alone: it takes 'chat_template' if "
            "it is started with --trust-request-chat-template.",
            param="chat_template",
            code="unsupported_parameter",
        )
    if not context.in_worker:
        raise WorkerNeeded
    try:
        tokenizer = context.tokenizer.with_template(source, bounded_work)
    except TemplateRefused as error:
        raise RequestError(f"Invalid 'chat_template': {error}.", param="chat_template") from None
    return context._replace(tokenizer=tokenizer)


def render_chat(chat: ChatInput, context: InputContext) -> RenderedTurns:
    """Return a conversation as the template writes it. Raises RequestError."""
    template, options = context.tokenizer.template, chat.template
    if template is None:
        raise RequestError(
            "This model has no chat template; use /v1/completions.", code="no_chat_template"
        )
    if options.documents and not template.takes_documents:
        raise RequestError(
            "The model's chat template has no place for documents: put them into a message.",
            param="documents",
            code="unsupported_parameter",
        )
    documents = {"documents": [*options.documents]} if options.documents else {}
    render = partial(
        template.render,
        add_generation_prompt=options.add_generation_prompt and not options.continues,
        continue_final_message=options.continues,
        extra={**template_kwargs(chat, template), **documents},
    )
    form = call_format(chat, context)
    try:
        if form is not None and form.in_text:
            return render_with_tools(chat, render)
        return render_turns(
            [message.as_template_message() for message in chat.messages],
            partial(render, tools=[tool.as_template_tool() for tool in chat.offered_tools]),
        )
    except TemplateRefused as error:
        is_own = options.source is not None
        raise RequestError(
            f"The {'request' if is_own else 'model'}'s chat template does not take these "
            f"messages: {error}.",
            param="chat_template" if is_own else chat.path("messages"),
            code="invalid_messages",
        ) from None


def with_cacheable(prompt: Prompt, text: str, chat: ChatInput, context: InputContext) -> Prompt:
    """Return a prompt, which was made of `text`, with the tokens of its full blocks up to the last
    message that the client wants in the prefix cache. Raises RequestError."""
    if chat.num_cached is None or not context.limits.keeps_prefixes:
        return prompt
    nums = {
        num: _tokens_until(num, prompt, text, chat, context)
        for num in (chat.num_cached, chat.num_cached_long)
        if num is not None
    }
    num_long = 0 if chat.num_cached_long is None else nums[chat.num_cached_long]
    num_all = nums[chat.num_cached]
    return prompt._replace(num_cacheable=num_all, num_cacheable_long=min(num_long, num_all))


def _tokens_until(
    num_messages: int, prompt: Prompt, text: str, chat: ChatInput, context: InputContext
) -> int:
    """Return the tokens of the full blocks of a prompt up to the end of some messages."""
    num_tokens, block_size = len(prompt.token_ids), context.facts.block_size
    if num_messages < len(chat.messages):
        end = _num_common(text, _text_until(num_messages, chat, context))
        if len(text) - end < end:
            num_tokens -= len(context.tokenizer.encode(text[end:], add_special_tokens=False))
        else:
            num_tokens = len(context.tokenizer.encode(text[:end], add_special_tokens=False))
    return num_tokens // block_size * block_size


def _num_common(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike, by bisection."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def _text_until(num_messages: int, chat: ChatInput, context: InputContext) -> str:
    """Return what the template writes of a conversation that is another after some messages,
    nothing where it refuses that."""
    first, (message, *_) = chat.messages[:num_messages], chat.messages[num_messages:]
    other = replace(message, parts=(TextPart(OTHER_TEXT),), reasoning=None)
    try:
        return render_chat(replace(chat, messages=(*first, other)), context).text
    except RequestError:
        return ""


def unread_kwargs(chat: ChatInput, context: InputContext) -> tuple[str, ...]:
    """Return a warning if the template does not look at some of `chat_template_kwargs`."""
    template = context.tokenizer.template
    unread = [] if template is None else template.unread(chat.template.kwargs)
    if not unread:
        return ()
    shown = ", ".join(map(ascii, unread))[:MAX_SHOWN_CHARS]
    return (f"the chat template does not read these chat_template_kwargs: {shown}",)


def encode(
    text: str,
    field: str,
    context: InputContext,
    truncation: Truncation | None = None,
    *,
    add_special_tokens: bool,
) -> Prompt:
    """Return a text in tokens, at least one. Raises RequestError."""
    refuse_longer(text, field, context, at_least=MIN_COUNTED_CHARS if truncation else 0)
    token_ids = context.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if not token_ids:
        raise RequestError(f"Invalid '{field}': it has no tokens.", param=field)
    prompt = _cut(Prompt(token_ids, field, text), truncation, context.facts.max_model_len)
    if context.tokenizer.num_tokens > context.facts.vocab_size:
        # The model has no embedding for some tokens: one of them must not reach the engine.
        check_token_ids(token_ids, context.facts.vocab_size, field)
    return prompt


def _cut(prompt: Prompt, truncation: Truncation | None, most: int) -> Prompt:
    """Return what is left of a prompt. Raises RequestError if that is longer than the context."""
    left = prompt if truncation is None else truncation.cut(prompt)
    check_prompt_length(len(left.token_ids), left.field, most)
    return left


def encode_any(
    text: str, field: str, context: InputContext, *, add_special_tokens: bool
) -> tuple[int, ...]:
    """Return the tokens of a text, which may be empty or somewhat too long for the context.
    Raises RequestError."""
    refuse_longer(text, field, context, at_least=MIN_COUNTED_CHARS)
    return context.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def decode_tokens(token_ids: tuple[int, ...], context: InputContext) -> str:
    """Return the text of tokens, special ones among them. Raises RequestError for an id that the
    model does not have."""
    check_token_ids(token_ids, context.facts.vocab_size, "tokens")
    return context.tokenizer.decode(token_ids, skip_special_tokens=False)


def refuse_longer(text: str, field: str, context: InputContext, *, at_least: int) -> None:
    """Raise RequestError for a text that cannot fit the context, however well it is encoded: the
    work of encoding it would be lost.

    Texts of up to `at_least` characters pass.
    """
    tokenizer, most = context.tokenizer, context.facts.max_model_len
    if (
        tokenizer.token_bytes.kind is TokenizerKind.OTHER
    ):  # such may make one token of any unknown text
        return
    if len(text) > max(most * tokenizer.max_token_chars, at_least):
        least = len(text) // tokenizer.max_token_chars
        raise ContextTooLong(
            f"The model's context is {most} tokens; a text of {len(text)} characters has at least "
            f"{least}.",
            param=field,
            lengths=ContextLengths(most, least, is_least=True),
        )
