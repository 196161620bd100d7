"""Makes the grammar of a chat request's tool calls."""

from quire.server.errors import RequestError
from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.protocol.tools import AllowedTools
from quire.server.generation.tools.checks import call_format
from quire.server.grammars.compose import Grammar
from quire.server.grammars.schema_check import check_schema
from quire.server.grammars.tool_calls import ToolUse, tool_calls
from quire.server.grammars.tool_schemas import CallableTool
from quire.server.models.input_context import InputContext
from quire.server.parsers.formats import ToolFormat

MAX_GRAMMAR_BYTES = 512 * 1024
"""The schemas of all tools, as the grammar holds them."""
KIND = "tools"


def enforced_field(request: ChatRequest) -> str | None:
    """Return the path of the field for which calls must be of a grammar, None without one."""
    if request.requires_calls or (
        isinstance(request.tool_choice, AllowedTools) and request.offered_tools
    ):
        return "tool_choice"
    strict = (index for index, tool in request.callable_tools.items() if tool.function.strict)
    return next((f"tools[{index}].function.strict" for index in strict), None)


def tool_grammar(
    request: ChatRequest, context: InputContext, *, any_whitespace: bool
) -> Grammar | None:
    """Return the rule `body` of outputs that may call tools, None where that is not enforced.
    Beside an answer that must be of something, or that is another message, the output is calls
    alone. Raises RequestError."""
    form, field = call_format(request, context), enforced_field(request)
    if not request.offered_tools or form is None or not (field or request.grammar_sources):
        return None
    tools = _callable_tools(request)
    warnings = [
        warning
        for tool in tools
        if not tool.is_free
        for warning in check_schema(tool.parameters, tool.path, strict=tool.is_strict)
    ]
    specials = context.tokenizer.special_tokens
    is_alone = has_calls_alone(request, form)
    use = ToolUse(tools, is_alone, not request.takes_one_call, any_whitespace)
    text = tool_calls(form, use, specials)
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise RequestError(
            f"The grammar of the tools has {len(text.encode())} bytes, at most "
            f"{MAX_GRAMMAR_BYTES} are allowed: offer fewer tools.",
            param="tools",
        )
    alone = use._replace(is_required=True, parallel=False)
    parts = (
        Grammar(
            f"start: body\n{tool_calls(form, alone._replace(tools=[tool]), specials)}",
            KIND,
            tool.path,
        )
        for tool in tools
    )
    return Grammar(text, KIND, field or "tools", tuple(warnings), tuple(parts))


def has_calls_alone(request: ChatRequest, form: ToolFormat) -> bool:
    """Return whether enforced calls have no text beside them in an output."""
    return request.requires_calls or bool(request.grammar_sources) or form.ends_output


def _callable_tools(request: ChatRequest) -> list[CallableTool]:
    return [
        CallableTool(
            tool.function.name,
            tool.function.parameters or {},
            f"tools[{index}].function",
            is_free=not (request.requires_calls or tool.function.strict),
            is_strict=bool(tool.function.strict),
        )
        for index, tool in request.callable_tools.items()
    ]
