"""A request for a response as an input, whose paths are those of the body of `/v1/responses`."""

from collections.abc import Mapping

from pydantic_core import PydanticCustomError

from quire.server.apis.protocol.parse import error_at, invalid, unsupported, validate
from quire.server.apis.protocol.structured import (
    ANY_OBJECT,
    FORMATS,
    JSON_OBJECT,
    read_json_schema,
)
from quire.server.apis.protocol.tools import CHOICES, MAX_TOOLS, Function, input_tool
from quire.server.apis.responses.history import History, read_item, with_named
from quire.server.apis.responses.items import ItemConverter
from quire.server.apis.responses.protocol import LOGPROBS, ResponsesRequest
from quire.server.errors import RequestError
from quire.server.generation.input import (
    ChatInput,
    InputTool,
    NamedChoice,
    OutputOptions,
    ToolChoice,
)
from quire.server.grammars.source import GrammarKind, GrammarSource

_PATHS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "num_logprobs": "top_logprobs",
    "reasoning_effort": "reasoning.effort",
}
_FORMAT = "text.format"


def input_items(request: ResponsesRequest, history: History) -> list[dict[str, object]]:
    """Return the items of the input, those that it names among them."""
    if isinstance(request.input, str):
        return [{"role": "user", "content": request.input}]
    return with_named(request.input, history.named)


def chat_input(
    request: ResponsesRequest, history: History, no_effect: tuple[str, ...]
) -> ChatInput:
    """Return the request as an input, whatever was stored before it first. Raises RequestError."""
    _check_background(request)
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "'stream_options' is only allowed with 'stream': true.", param="stream_options"
        )
    conversation = ItemConverter()
    if request.instructions:
        conversation.add_text("system", request.instructions, "instructions")
    for raw in history.items:
        conversation.add_item(read_item(raw), "previous_response_id")
    is_text = isinstance(request.input, str)
    for index, item in enumerate(input_items(request, history)):
        conversation.add_item(item, "input" if is_text else f"input[{index}]")
    messages = conversation.messages()
    if not messages:
        raise invalid("input", "holds nothing to answer")
    has_logprobs = request.top_logprobs is not None or LOGPROBS in (request.include or ())
    options = OutputOptions(
        model=request.model,
        stream=bool(request.stream),
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        num_logprobs=(request.top_logprobs or 0) if has_logprobs else None,
        grammar=_grammar(request.text.format if request.text else None),
        paths=_PATHS,
    )
    return ChatInput(
        messages=messages,
        options=options,
        tools=_tools(request),
        choice=_choice(request.tool_choice, one_call=request.parallel_tool_calls is False),
        effort=request.reasoning.effort if request.reasoning else None,
        keeps_order=True,
        no_effect=(*no_effect, *_without_effect(request)),
    )


def _check_background(request: ResponsesRequest) -> None:
    if request.background and request.store is False:
        raise RequestError(
            "'background' needs the response to be stored: leave 'store' out.", param="store"
        )
    if request.background and request.stream:
        raise unsupported("stream", "with 'background'; ask for the response until it has ended")


def _without_effect(request: ResponsesRequest) -> tuple[str, ...]:
    """Return the fields that are taken and change nothing."""
    reasoning, verbosity = request.reasoning, request.text and request.text.verbosity
    fields = {
        "reasoning.summary": reasoning and (reasoning.summary or reasoning.generate_summary),
        "text.verbosity": verbosity not in (None, "medium"),
    }
    included = (f"include {each}" for each in request.include or () if each != LOGPROBS)
    return (*(name for name, given in fields.items() if given), *included)


def _tools(request: ResponsesRequest) -> tuple[InputTool, ...]:
    given = request.tools or []
    if len(given) > MAX_TOOLS:
        raise invalid("tools", f"has {len(given)} items, at most {MAX_TOOLS} are allowed")
    return tuple(_tool(each, f"tools[{index}]") for index, each in enumerate(given))


def _tool(given: Mapping[str, object], where: str) -> InputTool:
    if given.get("type") != "function":
        raise unsupported(f"{where}.type")
    fields = {key: each for key, each in given.items() if key != "type" and each is not None}
    return input_tool(validate(fields, Function, at=where), where)


def _choice(given: object, *, one_call: bool) -> ToolChoice:
    where = "tool_choice"
    if given is None:
        return ToolChoice(one_call=one_call)
    if isinstance(given, str) and given in CHOICES:
        return ToolChoice(CHOICES[given], one_call=one_call)
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(given, dict) and kind == "function" and isinstance(given.get("name"), str):
        among = (NamedChoice(given["name"], f"{where}.name"),)
        return ToolChoice("required", among, names_one=True, one_call=one_call)
    if isinstance(given, dict) and kind == "allowed_tools":
        return _allowed(given, one_call=one_call)
    raise invalid(
        where,
        "must be 'none', 'auto', 'required', or an object of type 'function' with a 'name' or of "
        "type 'allowed_tools'",
    )


def _allowed(given: Mapping[str, object], *, one_call: bool) -> ToolChoice:
    """Return a choice among some of the tools. Raises RequestError."""
    mode, tools = given.get("mode"), given.get("tools")
    named = tools if isinstance(tools, list) else []
    among = tuple(
        NamedChoice(each["name"], f"tool_choice.tools[{index}].name")
        for index, each in enumerate(named)
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    )
    if mode not in ("auto", "required") or not among or len(among) < len(named):
        raise invalid(
            "tool_choice",
            "must have a 'mode', 'auto' or 'required', and 'tools' with a 'name' each",
        )
    return ToolChoice(CHOICES[mode], among, one_call=one_call)


def _grammar(given: Mapping[str, object] | None) -> GrammarSource | None:
    """Return the form that the text must have. Raises RequestError."""
    if given is None:
        return None
    kind = given.get("type")
    if kind not in FORMATS:
        raise invalid(f"{_FORMAT}.type", f"must be one of {', '.join(FORMATS)}")
    fields = {key: each for key, each in given.items() if key != "type" and each is not None}
    if kind == "json_schema":
        try:
            return read_json_schema(fields, "", _FORMAT)
        except PydanticCustomError as error:
            raise error_at(error, _FORMAT) from None
    if fields:
        raise unsupported(f"{_FORMAT}.{next(iter(fields))[:100]}")
    if kind == JSON_OBJECT:
        return GrammarSource(GrammarKind.JSON, ANY_OBJECT, f"{_FORMAT}.type")
    return None
