"""`functions` and `function_call`, which OpenAI's API had before tools: a request with them becomes
one with tools, of which at most one is called."""

from collections.abc import Sequence

from quire.server.errors import RequestError
from quire.server.generation.protocol.chat import ChatRequest, Message
from quire.server.generation.protocol.tools import Tool, ToolCall
from quire.server.grammars.client_names import OWN_NAMES, ClientNames

OLD_NAMES = ClientNames(
    (
        (r"tools\[(\d+)\]\.function", r"functions[\1]"),
        (r"\btool_choice\.function\b", "function_call"),
        (r"\btool_choice\b", "function_call"),
        (r"'tools'", "'functions'"),
        (r"^tools$", "functions"),
        (r"(messages\[\d+\])\.tool_calls", r"\1.function_call"),
    )
)


def with_tools(request: ChatRequest) -> ChatRequest:
    """Return the request with tools in place of functions, also in its history; `functions` is then
    empty, or None where the client gave none. Raises RequestError."""
    changes: dict[str, object] = {}
    if any(each.function_call or each.role == "function" for each in request.messages):
        changes["messages"] = _with_calls(request.messages)
    if request.functions or request.function_call not in (None, "none"):
        _check_alone(request)
        tools = [Tool(type="function", function=each) for each in request.functions or ()]
        changes |= {"tools": tools, "tool_choice": request.function_call, "functions": []}
        changes["parallel_tool_calls"] = False
    return request.model_copy(update=changes) if changes else request


def names_of(request: ChatRequest) -> ClientNames:
    """Return the names that the client of `request` has for its fields."""
    return OLD_NAMES if request.functions or request.function_call is not None else OWN_NAMES


def _check_alone(request: ChatRequest) -> None:
    old = "functions" if request.functions else "function_call"
    if request.tools or request.tool_choice not in (None, "none"):
        raise RequestError(f"'{old}' and 'tools' exclude each other; give one of them.", param=old)
    if request.parallel_tool_calls:
        raise RequestError(
            "'parallel_tool_calls' cannot be true with 'functions': an answer holds one "
            "'function_call'.",
            param="parallel_tool_calls",
        )


def _with_calls(messages: Sequence[Message]) -> list[Message]:
    """Return a history with tool calls and results in place of those of functions. A result is that
    of the last call of its function."""
    changed: list[Message] = []
    ids: dict[str, str] = {}
    for index, message in enumerate(messages):
        called = message.function_call
        if called is not None:
            _check_call(message, f"messages[{index}]")
            ids[called.name] = f"call_{index}"
            call = ToolCall(id=ids[called.name], function=called)
            changes: dict[str, object] = {"tool_calls": [call], "function_call": None}
            message = message.model_copy(update=changes)
        if message.role == "function":
            changes = {"role": "tool", "tool_call_id": _answered(message, index, ids)}
            message = message.model_copy(update=changes)
        changed.append(message)
    return changed


def _check_call(message: Message, where: str) -> None:
    if message.role != "assistant":
        raise RequestError(
            "Only an assistant's message can hold 'function_call'.", param=f"{where}.function_call"
        )
    if message.tool_calls:
        raise RequestError(
            "'function_call' and 'tool_calls' exclude each other; give one of them.",
            param=f"{where}.function_call",
        )


def _answered(message: Message, index: int, ids: dict[str, str]) -> str:
    """Return the id of the call that a function's result answers. Raises RequestError."""
    where = f"messages[{index}].name"
    if message.name is None:
        raise RequestError(
            f"Missing required field '{where}'.", param=where, code="missing_required_parameter"
        )
    if message.name not in ids:
        raise RequestError(
            f"No message before 'messages[{index}]' holds a call of the function {message.name!r}.",
            param=where,
        )
    return ids[message.name]
