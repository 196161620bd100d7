"""Checks of a chat request's tools and of its history of calls, also against the model."""

from collections.abc import Sequence

from quire.server.errors import RequestError
from quire.server.generation.protocol.chat import ChatRequest, Message
from quire.server.generation.protocol.tools import AllowedTools, NamedTool, Tool, ToolChoice
from quire.server.models.input_context import InputContext
from quire.server.parsers.formats import ToolFormat, ToolFormatName
from quire.server.text.chat_template import ChatTemplate


def check_tools(request: ChatRequest, context: InputContext) -> None:
    """Check tools and calls against each other and against the model. Raises RequestError."""
    tools = request.tools or []
    _check_functions(tools)
    _check_choice(request.tool_choice, [tool.function.name for tool in tools])
    _check_results(request.messages)
    template, form = context.tokenizer.template, call_format(request, context)
    if template is not None and not (form is not None and form.in_text):
        _check_template(request, template)
    if request.offered_tools and form is None:
        raise RequestError(
            "The format of this model's tool calls is not known: start the server with "
            '--tool-call-parser, or ask with \'tool_choice\': "required" or "none".',
            param="tools",
            code="unsupported_parameter",
        )


def _check_functions(tools: Sequence[Tool]) -> None:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}].function"
        if tool.function.name in names:
            raise RequestError(
                f"Two tools have the name {tool.function.name!r}.", param=f"{where}.name"
            )
        names.add(tool.function.name)
        schema = tool.function.parameters or {}
        if schema.get("type", "object") != "object":
            raise RequestError(
                f"Invalid '{where}.parameters': it must be the JSON schema of an object.",
                param=f"{where}.parameters.type",
            )
        if not isinstance(schema.get("properties", {}), dict):
            raise RequestError(
                f"Invalid '{where}.parameters.properties': it must be an object.",
                param=f"{where}.parameters.properties",
            )


def _check_choice(choice: ToolChoice | None, names: Sequence[str]) -> None:
    if choice is None or choice == "none":
        return
    if isinstance(choice, NamedTool):
        _check_named(choice.name, names, "tool_choice.function.name")
    if isinstance(choice, AllowedTools):
        for index, name in enumerate(choice.names):
            path = f"tool_choice.allowed_tools.tools[{index}].function.name"
            _check_named(name, names, path)
    if not names:
        raise RequestError("'tool_choice' is only allowed with 'tools'.", param="tool_choice")


def _check_named(name: str, names: Sequence[str], path: str) -> None:
    if name not in names:
        raise RequestError(f"'{path}' is {name!r}, which is none of 'tools'.", param=path)


def _check_results(messages: Sequence[Message]) -> None:
    """Raise RequestError for a tool's result without the call that it answers."""
    ids: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.tool_calls and message.role != "assistant":
            raise RequestError(
                "Only an assistant's message can hold 'tool_calls'.", param=f"{where}.tool_calls"
            )
        ids.update(call.id for call in message.tool_calls or ())
        if message.role != "tool":
            continue
        if message.tool_call_id is None:
            raise RequestError(
                f"Missing required field '{where}.tool_call_id'.",
                param=f"{where}.tool_call_id",
                code="missing_required_parameter",
            )
        if message.tool_call_id not in ids:
            raise RequestError(
                f"No message before '{where}' holds a call with the id {message.tool_call_id!r}.",
                param=f"{where}.tool_call_id",
            )


def _check_template(request: ChatRequest, template: ChatTemplate) -> None:
    """Raise RequestError for what the template would drop in silence."""
    if request.offered_tools and not template.takes_tools:
        raise RequestError(
            "The model's chat template has no place for tools: start the server with "
            "--tool-call-parser generic, and they are described in its text.",
            param="tools",
            code="unsupported_parameter",
        )
    called = (index for index, message in enumerate(request.messages) if message.tool_calls)
    index = next(called, None)
    if index is not None and not template.takes_calls:
        raise RequestError(
            "The model's chat template has no place for tool calls.",
            param=f"messages[{index}].tool_calls",
            code="unsupported_parameter",
        )


def call_format(request: ChatRequest, context: InputContext) -> ToolFormat | None:
    """Return how the model writes calls, None if that is not known. A model that must call a tool
    is held to a format anyway, which then is the most common one."""
    known = context.limits.tool_format
    return ToolFormatName.hermes.value if known is None and request.requires_calls else known
