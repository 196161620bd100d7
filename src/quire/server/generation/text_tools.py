"""Tools, calls and results as text of messages, for chat templates without a place for them: the
format of calls is then `generic`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from quire.server.generation.input import ChatInput, InputMessage, InputTool, InputToolCall
from quire.server.generation.system_turns import (
    GAP,
    Render,
    RenderedTurns,
    SystemPlace,
    render_turns,
)
from quire.server.parsers.markup import to_json
from quire.server.text.chat_template import ChatMessage, TemplateRefused

_BEFORE_TOOLS = "You can call these functions, each described by a JSON schema:"
_AFTER_TOOLS = """\
To call functions, answer with a JSON list of calls and nothing else. A call has the "name" of a \
function and its "arguments", an object:
[{"name": ..., "arguments": {...}}]
You are then told their results. If no function helps, answer in plain text."""


class _Turn(NamedTuple):
    """A message, and whether it holds calls or results as text."""

    role: str
    message: ChatMessage
    is_rewritten: bool


def render_with_tools(chat: ChatInput, render: Render) -> RenderedTurns:
    """Return a conversation as the template writes it by `render`, its tools described in the
    system's message, or where the template does not show that, in the first of the user. Raises
    TemplateRefused."""
    messages = _as_text(chat.messages)
    if not chat.offered_tools:
        return render_turns(messages, render)
    description = _describe(chat.offered_tools)
    refusal = TemplateRefused("the template does not show the description of the tools")
    for role in ("system", "user"):
        described = _with_description(messages, role, description)
        try:
            rendered = _rendered(chat, described, render)
        except TemplateRefused as error:
            refusal = error
            continue
        if description in rendered.text:
            return rendered
    raise refusal


def _rendered(chat: ChatInput, described: Sequence[ChatMessage], render: Render) -> RenderedTurns:
    """Return a conversation as the template writes it. A message of the system that is the
    description alone has no other place than its own. Raises TemplateRefused."""
    if any(each.role == "system" for each in chat.messages):
        return render_turns(described, render)
    return RenderedTurns(render(described), SystemPlace.AS_GIVEN)


def _describe(tools: Sequence[InputTool]) -> str:
    shown = (to_json(tool.as_template_tool()["function"]) for tool in tools)
    return GAP.join((_BEFORE_TOOLS, "\n".join(shown), _AFTER_TOOLS))


def _with_description(
    messages: Sequence[ChatMessage], role: str, description: str
) -> list[ChatMessage]:
    """Return the messages with the description of the tools after the text of the system's message,
    or before that of the user's first. Where there is none, it is a message of its own."""
    first = next((index for index, each in enumerate(messages) if each["role"] == role), None)
    if first is None or (role == "system" and first > 0):
        return [{"role": role, "content": description}, *messages]
    texts = [str(messages[first]["content"]), description]
    content = GAP.join(texts if role == "system" else reversed(texts))
    return [*messages[:first], {**messages[first], "content": content}, *messages[first + 1 :]]


def _as_text(messages: Sequence[InputMessage]) -> list[ChatMessage]:
    """Return the messages with calls as text of the assistant and results as text of the user. A
    message that is rewritten so is one with its neighbours of the same role: many templates want
    roles to alternate."""
    made: list[_Turn] = []
    for turn in _turns(messages):
        last = made[-1] if made else None
        if last is None or last.role != turn.role or not (last.is_rewritten or turn.is_rewritten):
            made.append(turn)
            continue
        texts = (str(each.message["content"]) for each in (last, turn))
        content = GAP.join(text for text in texts if text)
        made[-1] = _Turn(turn.role, {**last.message, "content": content}, True)
    return [turn.message for turn in made]


def _turns(messages: Sequence[InputMessage]) -> Iterator[_Turn]:
    called: dict[str, tuple[int, str]] = {}
    for is_result, group in groupby(messages, lambda message: message.role == "tool"):
        if is_result:
            yield _results(tuple(group), called)
            continue
        for message in group:
            for call in message.tool_calls:
                called[call.id] = len(called), call.name
            yield _turn(message)


def _results(messages: Sequence[InputMessage], called: Mapping[str, tuple[int, str]]) -> _Turn:
    """Return the results of calls in the order of these, since their text has no ids."""
    results = sorted((called[str(each.tool_call_id)], each.text) for each in messages)
    texts = (f"Result of {name}:\n{content}" for (_, name), content in results)
    return _Turn("user", {"role": "user", "content": GAP.join(texts)}, True)


def _turn(message: InputMessage) -> _Turn:
    shown = message.as_template_message()
    role = str(shown["role"])
    if not message.tool_calls:
        return _Turn(role, shown, False)
    del shown["tool_calls"]
    texts = (message.text, to_json([_written(call) for call in message.tool_calls]))
    return _Turn(role, {**shown, "content": GAP.join(text for text in texts if text)}, True)


def _written(call: InputToolCall) -> dict[str, object]:
    return {"name": call.name, "arguments": call.arguments}
