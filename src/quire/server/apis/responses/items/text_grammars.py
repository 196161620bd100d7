"""Grammars of custom tools' inputs, in the format in which a model writes calls."""

from dataclasses import replace

from quire.server.apis.protocol.parse import unsupported
from quire.server.apis.protocol.unknown_fields import UnknownFields
from quire.server.generation.checks import call_format
from quire.server.generation.input import ChatInput
from quire.server.grammars.line_ends import may_run_on
from quire.server.grammars.source import GrammarKind, GrammarSource
from quire.server.models.input_context import InputContext
from quire.server.parsers.formats import TaggedCall


def with_enforced_inputs(
    chat: ChatInput, context: InputContext, unknown: UnknownFields
) -> ChatInput:
    """Return a chat whose tools have the grammars that calls can be held to; of another the model
    is told alone. Raises RequestError where a call of such a tool is required."""
    form = call_format(chat, context)
    if form is None:
        return chat
    is_text = all(isinstance(each, TaggedCall) for each in form.syntax)
    required = {tool.name for tool in chat.callable_tools} if chat.requires_calls else set()
    tools = []
    for tool in chat.tools:
        why = _why_not(tool.text_grammar, is_text=is_text)
        if why is not None and tool.name in required:
            raise unsupported(f"{tool.path}.format", f"where 'tool_choice' requires calls: {why}")
        if why is not None:
            unknown.leave_out(f"{tool.path}.format")
        tools.append(tool if why is None else replace(tool, strict=False, text_grammar=None))
    return replace(chat, tools=tuple(tools), ignored=unknown.ignored)


def _why_not(grammar: GrammarSource | None, *, is_text: bool) -> str | None:
    """Return the reason why calls cannot be held to a grammar, None where they can; `is_text` says
    that the model writes inputs as they are."""
    if grammar is None or grammar.kind is not GrammarKind.GRAMMAR:
        return None
    if not is_text:
        return (
            "this model writes them as JSON, whose strings a Lark grammar cannot describe; a "
            "grammar of syntax 'regex' can be enforced"
        )
    if may_run_on(grammar.text):
        return (
            "one of its terminals may match a line end and go on, so that the tag after the input "
            "would be a part of it; end such terminals before line ends"
        )
    return None
