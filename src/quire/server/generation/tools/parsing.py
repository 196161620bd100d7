"""Says how the outputs of a chat request are parsed for calls and reasoning."""

from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.tools.checks import call_format
from quire.server.generation.tools.grammars import enforced_field, has_calls_alone
from quire.server.models.input_context import InputContext
from quire.server.parsers.output_parser import ParserOptions


def parser_options(request: ChatRequest, prompt: str, context: InputContext) -> ParserOptions:
    """Return how the outputs of a request are parsed; `prompt` is its text."""
    reasoning, shown = context.limits.reasoning_format, prompt.rstrip()
    form = call_format(request, context) if request.offered_tools else None
    holds_calls = form is not None and enforced_field(request) is not None
    return ParserOptions(
        tool_format=form,
        tools={
            tool.function.name: tool.function.parameters or {}
            for tool in request.callable_tools.values()
        },
        one_call=request.takes_one_call,
        reasoning=reasoning,
        in_reasoning=reasoning is not None and shown.endswith(reasoning.opens),
        is_enforced=bool(request.grammar_sources)
        or (form is not None and holds_calls and has_calls_alone(request, form)),
        has_calls_alone=form is not None and request.requires_calls,
        is_thought_out=reasoning is not None and shown.endswith(reasoning.closes),
    )
