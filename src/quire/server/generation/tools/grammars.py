"""Makes the grammar of a chat request's tool calls."""

from quire.server.errors import RequestError
from quire.server.generation.checks import call_format, enforced_path
from quire.server.generation.input import ChatInput
from quire.server.grammars.compose import Grammar
from quire.server.grammars.schema_check import check_schema
from quire.server.grammars.tool_calls import ToolUse, tool_calls
from quire.server.grammars.tool_schemas import CallableTool
from quire.server.models.input_context import InputContext
from quire.server.parsers.formats import ToolFormat

MAX_GRAMMAR_BYTES = 512 * 1024
"""The schemas of all tools, as the grammar holds them."""
KIND = "tools"


def tool_grammar(chat: ChatInput, context: InputContext, *, any_whitespace: bool) -> Grammar | None:
    """Return the rule `body` of outputs that may call tools, None where that is not enforced.
    Beside an answer that must be of something, or that is another message, the output is calls
    alone. Raises RequestError."""
    form, field = call_format(chat, context), enforced_path(chat)
    if not chat.offered_tools or form is None or not (field or chat.options.grammar):
        return None
    tools = _callable_tools(chat)
    warnings = [
        warning
        for tool in tools
        if not tool.is_free
        for warning in check_schema(tool.parameters, tool.path, strict=tool.is_strict)
    ]
    specials = context.tokenizer.special_tokens
    is_alone = has_calls_alone(chat, form)
    use = ToolUse(tools, is_alone, not chat.takes_one_call, any_whitespace)
    text = tool_calls(form, use, specials)
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise RequestError(
            f"The grammar of the tools has {len(text.encode())} bytes, at most "
            f"{MAX_GRAMMAR_BYTES} are allowed: offer fewer tools.",
            param=chat.path("tools"),
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
    return Grammar(text, KIND, field or chat.path("tools"), tuple(warnings), tuple(parts))


def has_calls_alone(chat: ChatInput, form: ToolFormat) -> bool:
    """Return whether enforced calls have no text beside them in an output."""
    return chat.requires_calls or chat.options.grammar is not None or form.ends_output


def _callable_tools(chat: ChatInput) -> list[CallableTool]:
    return [
        CallableTool(
            tool.name,
            tool.parameters or {},
            tool.path,
            tool.schema_path,
            is_free=not (chat.requires_calls or tool.strict),
            is_strict=tool.strict,
        )
        for tool in chat.callable_tools
    ]
