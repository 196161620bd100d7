"""Says how the outputs of a chat request are parsed for calls and reasoning."""

from quire.server.generation.checks import call_format, enforced_path
from quire.server.generation.input import ChatInput
from quire.server.generation.tools.grammars import has_calls_alone
from quire.server.models.input_context import InputContext
from quire.server.parsers.output_parser import ParserOptions


def parser_options(chat: ChatInput, prompt: str, context: InputContext) -> ParserOptions:
    """Return how the outputs of a request are parsed; `prompt` is its text."""
    reasoning, shown = context.limits.reasoning_format, prompt.rstrip()
    form = call_format(chat, context) if chat.offered_tools else None
    holds_calls = form is not None and enforced_path(chat) is not None
    return ParserOptions(
        tool_format=form,
        tools={tool.name: tool.parameters or {} for tool in chat.callable_tools},
        one_call=chat.takes_one_call,
        reasoning=reasoning,
        in_reasoning=reasoning is not None and shown.endswith(reasoning.opens),
        is_enforced=chat.options.grammar is not None
        or (form is not None and holds_calls and has_calls_alone(chat, form)),
        has_calls_alone=form is not None and chat.requires_calls,
        is_thought_out=reasoning is not None and shown.endswith(reasoning.closes),
    )
