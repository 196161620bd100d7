"""A request for a response becomes a chat request, whose owners check and run it; errors name the
fields as the client of `/v1/responses` wrote them."""

from quire.server.apis.responses.history import NO_HISTORY, History, read_item, with_named
from quire.server.apis.responses.items import Conversation, unsupported
from quire.server.apis.responses.protocol import LOGPROBS, ResponsesRequest
from quire.server.errors import RequestError
from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.protocol.parse import validate
from quire.server.grammars.client_names import ClientNames

_NAMES = (
    (r"\b(tools\[\d+\])\.function\b", r"\1"),
    (r"\btool_choice\.function\b", "tool_choice"),
    (r"\btool_choice\.allowed_tools\b", "tool_choice"),
    (r"\bresponse_format(\.json_schema)?\b", "text.format"),
    (r"\btool_call_id\b", "call_id"),
    (r"\breasoning_effort\b", "reasoning.effort"),
    (r"\bmax_completion_tokens\b", "max_output_tokens"),
)


def input_items(request: ResponsesRequest, history: History) -> list[dict[str, object]]:
    """Return the items of the input, those that it names among them."""
    if isinstance(request.input, str):
        return [{"role": "user", "content": request.input}]
    return with_named(request.input, history.named)


def as_chat(
    request: ResponsesRequest, history: History = NO_HISTORY
) -> tuple[ChatRequest, ClientNames]:
    """Return the request as a chat's, what was stored before it first, and the names that the
    client has for its fields. Raises RequestError."""
    _check_background(request)
    conversation = Conversation()
    if request.instructions:
        conversation.add_text("system", request.instructions, "instructions")
    for raw in history.items:
        conversation.add_item(read_item(raw), "previous_response_id")
    is_text = isinstance(request.input, str)
    for index, item in enumerate(input_items(request, history)):
        conversation.add_item(item, "input" if is_text else f"input[{index}]")
    names = ClientNames(_NAMES, conversation.origins, "input")
    if not conversation.messages:
        raise RequestError("Invalid 'input': holds nothing to answer.", param="input")
    has_logprobs = request.top_logprobs is not None or LOGPROBS in (request.include or ())
    fields: dict[str, object] = {
        "model": request.model,
        "messages": conversation.messages,
        "tools": _tools(request),
        "tool_choice": _tool_choice(request.tool_choice),
        "parallel_tool_calls": request.parallel_tool_calls,
        "response_format": _format(request),
        "reasoning_effort": request.reasoning and request.reasoning.effort,
        "max_completion_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "logprobs": has_logprobs,
        "top_logprobs": request.top_logprobs,
        "stream": request.stream,
        "stream_options": request.stream_options and request.stream_options.model_dump(),
    }
    try:
        return validate(fields, ChatRequest), names
    except RequestError as error:
        raise names.error(error) from None


def _check_background(request: ResponsesRequest) -> None:
    if request.background and request.store is False:
        raise RequestError(
            "'background' needs the response to be stored: leave 'store' out.", param="store"
        )
    if request.background and request.stream:
        raise unsupported("stream", "with 'background'; ask for the response until it has ended")


def without_effect(request: ResponsesRequest) -> tuple[str, ...]:
    """Return the fields that are taken and change nothing."""
    reasoning, verbosity = request.reasoning, request.text and request.text.verbosity
    fields = {
        "reasoning.summary": reasoning and (reasoning.summary or reasoning.generate_summary),
        "text.verbosity": verbosity not in (None, "medium"),
    }
    included = (f"include {each}" for each in request.include or () if each != LOGPROBS)
    return (*(name for name, given in fields.items() if given), *included)


def _tools(request: ResponsesRequest) -> list[dict[str, object]] | None:
    tools: list[dict[str, object]] = []
    for index, tool in enumerate(request.tools or ()):
        if tool.get("type") != "function":
            raise unsupported(f"tools[{index}].type")
        function = {key: each for key, each in tool.items() if key != "type" and each is not None}
        tools.append({"type": "function", "function": function})
    return tools or None


def _tool_choice(choice: object) -> object:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    if choice.get("type") != "allowed_tools":
        raise RequestError(
            "Invalid 'tool_choice': must be 'none', 'auto', 'required', or an object of type "
            "'function' with a 'name' or of type 'allowed_tools'.",
            param="tool_choice",
        )
    tools = choice.get("tools")
    named = [_tool_choice(each) for each in tools] if isinstance(tools, list) else None
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}


def _format(request: ResponsesRequest) -> dict[str, object] | None:
    given = request.text and request.text.format
    if not given or given.get("type") != "json_schema":
        return dict(given) if given else None
    schema = {key: each for key, each in given.items() if key != "type" and each is not None}
    return {"type": "json_schema", "json_schema": schema}
