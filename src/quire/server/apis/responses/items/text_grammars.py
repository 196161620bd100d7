"""Grammars of custom tools' inputs, in the format in which a model writes calls."""

from dataclasses import replace

from quire.server.apis.protocol.parse import unsupported
from quire.server.apis.protocol.unknown_fields import UnknownFields
from quire.server.generation.checks import call_format
from quire.server.generation.input import ChatInput, InputTool
from quire.server.grammars.source import GrammarKind
from quire.server.models.input_context import InputContext
from quire.server.parsers.formats import TaggedCall


def with_enforced_inputs(
    chat: ChatInput, context: InputContext, unknown: UnknownFields
) -> ChatInput:
    """Return a chat whose tools have the grammars that calls can be held to. A text that is written
    as a JSON string follows no Lark grammar, since some of its characters are escaped there; the
    model is then told the grammar alone. Raises RequestError where such a call is required."""
    form = call_format(chat, context)
    if form is None or all(isinstance(each, TaggedCall) for each in form.syntax):
        return chat
    required = {tool.name for tool in chat.callable_tools} if chat.requires_calls else set()
    tools = []
    for tool in chat.tools:
        if tool.text_grammar is None or tool.text_grammar.kind is not GrammarKind.GRAMMAR:
            tools.append(tool)
            continue
        if tool.name in required:
            how = (
                "where 'tool_choice' requires calls: this model writes them as JSON, whose strings "
                "a Lark grammar cannot describe; a grammar of syntax 'regex' can be enforced"
            )
            raise unsupported(f"{tool.path}.format", how)
        unknown.leave_out(f"{tool.path}.format")
        tools.append(_told_alone(tool))
    return replace(chat, tools=tuple(tools), ignored=unknown.ignored)


def _told_alone(tool: InputTool) -> InputTool:
    return replace(tool, strict=False, text_grammar=None)
