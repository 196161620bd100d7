"""A conversation that is too long for the context loses its oldest turns, where the client asks
for that."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from quire.server.errors import ContextTooLong
from quire.server.generation.checks import prompt_too_long
from quire.server.generation.context import Prompt
from quire.server.generation.input import ChatInput, InputMessage
from quire.server.generation.prompts import chat_prompt, num_that_fit, render_chat
from quire.server.generation.system_turns import RenderedTurns
from quire.server.models.input_context import InputContext


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
    if num_tokens > num_that_fit(chat.options, most):
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
