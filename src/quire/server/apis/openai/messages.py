"""Messages of a chat as those of an input. A `function_call` of older clients becomes a tool call,
and a message of the role `function` the result of the last call of its function."""

from collections.abc import Sequence

from quire.server.apis.protocol.chat import Message as GivenMessage
from quire.server.apis.protocol.parse import missing
from quire.server.apis.protocol.tools import CalledFunction
from quire.server.errors import RequestError
from quire.server.generation.input import InputMessage, InputToolCall, Role


def messages_of(given: Sequence[GivenMessage]) -> tuple[InputMessage, ...]:
    """Return the messages of a chat. Raises RequestError."""
    ids: dict[str, str] = {}
    return tuple(_message(each, index, ids) for index, each in enumerate(given))


def _message(given: GivenMessage, index: int, ids: dict[str, str]) -> InputMessage:
    """Return a message; `ids` are those of the last call of each function so far."""
    where, role, call_id = f"messages[{index}]", given.role, given.tool_call_id
    id_path = f"{where}.tool_call_id"
    calls = _calls(given, where)
    if given.function_call is not None:
        call = _function_call(given, given.function_call, index)
        ids[call.name], calls = call.id, (call,)
    if role == "function":
        call_id, id_path = _answered(given, where, ids), f"{where}.name"
    elif role == "tool" and call_id is None:
        raise missing(id_path)
    return InputMessage(
        _ROLES.get(role, "user"),
        given.content,
        where,
        given.name,
        given.reasoning_content or given.reasoning,
        calls,
        call_id,
        id_path,
    )


_ROLES: dict[str, Role] = {
    "system": "system",
    # Templates predate the role of the developer, which took over that of the system.
    "developer": "system",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def _calls(given: GivenMessage, where: str) -> tuple[InputToolCall, ...]:
    if given.tool_calls and given.role != "assistant":
        raise RequestError(
            "Only an assistant's message can hold 'tool_calls'.", param=f"{where}.tool_calls"
        )
    return tuple(
        InputToolCall(
            call.id,
            call.function.name,
            call.function.arguments,
            f"{where}.tool_calls[{index}]",
        )
        for index, call in enumerate(given.tool_calls or ())
    )


def _function_call(given: GivenMessage, called: CalledFunction, index: int) -> InputToolCall:
    path = f"messages[{index}].function_call"
    if given.role != "assistant":
        raise RequestError("Only an assistant's message can hold 'function_call'.", param=path)
    if given.tool_calls:
        raise RequestError(
            "'function_call' and 'tool_calls' exclude each other; give one of them.", param=path
        )
    return InputToolCall(f"call_{index}", called.name, called.arguments, path)


def _answered(given: GivenMessage, where: str, ids: dict[str, str]) -> str:
    """Return the id of the call that a function's result answers. Raises RequestError."""
    path = f"{where}.name"
    if given.name is None:
        raise missing(path)
    if given.name not in ids:
        raise RequestError(
            f"No message before '{where}' holds a call of the function {given.name!r}.", param=path
        )
    return ids[given.name]
