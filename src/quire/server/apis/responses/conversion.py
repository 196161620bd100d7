"""A request for a response as an input, whose paths are those of the body of `/v1/responses`."""

from collections.abc import Iterator, Mapping

from pydantic_core import PydanticCustomError

from quire.server.apis.protocol.caching import asked_retention, longest
from quire.server.apis.protocol.parse import error_at, invalid, unsupported
from quire.server.apis.protocol.structured import (
    ANY_OBJECT,
    FORMATS,
    JSON_OBJECT,
    read_json_schema,
)
from quire.server.apis.protocol.unknown_fields import UnknownFields
from quire.server.apis.responses.history import History, read_item, with_named
from quire.server.apis.responses.items.converter import ItemConverter
from quire.server.apis.responses.items.tools import ToolTable, read_choice
from quire.server.apis.responses.protocol import ACTED_ON, LOGPROBS, ResponsesRequest
from quire.server.errors import RequestError
from quire.server.generation.input import ChatInput, OutputOptions
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


def placed_items(
    request: ResponsesRequest, history: History
) -> Iterator[tuple[dict[str, object], str]]:
    """Yield the items of a conversation with their paths: those of stored responses, then those of
    the input."""
    for raw in history.items:
        yield read_item(raw), "previous_response_id"
    is_text = isinstance(request.input, str)
    for index, item in enumerate(input_items(request, history)):
        yield item, "input" if is_text else f"input[{index}]"


def chat_input(
    request: ResponsesRequest,
    history: History,
    tools: ToolTable,
    unknown: UnknownFields,
    no_effect: tuple[str, ...] = (),
) -> ChatInput:
    """Return the request as an input, whatever was stored before it first. Raises RequestError."""
    _check_background(request)
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "'stream_options' is only allowed with 'stream': true.", param="stream_options"
        )
    conversation = ItemConverter(tools, unknown)
    if request.instructions:
        conversation.add_text("system", request.instructions, "instructions")
    for item, where in placed_items(request, history):
        conversation.add_item(item, where)
    messages = conversation.messages()
    if not messages:
        raise invalid("input", "holds nothing to answer")
    has_logprobs = request.top_logprobs is not None or LOGPROBS in (request.include or ())
    asked = asked_retention(request.prompt_cache_retention, request.prompt_cache_options)
    retention = longest(asked, conversation.retention)
    options = OutputOptions(
        model=request.model,
        stream=bool(request.stream),
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        num_logprobs=(request.top_logprobs or 0) if has_logprobs else None,
        session=_session(request, history),
        retention_s=retention.seconds,
        grammar=_grammar(request.text.format if request.text else None),
        paths={**_PATHS, "retention_s": retention.path},
    )
    one_call = request.parallel_tool_calls is False
    return ChatInput(
        messages=messages,
        options=options,
        tools=tuple(tools.tools),
        choice=read_choice(request.tool_choice, tools, one_call=one_call),
        effort=request.reasoning.effort if request.reasoning else None,
        keeps_order=True,
        drops_turns=request.truncation == "auto",
        no_effect=(*no_effect, *_without_effect(request)),
        ignored=unknown.ignored,
    )


def _session(request: ResponsesRequest, history: History) -> str:
    """Return the name of the conversation, which that of the responses before may be. One that
    others may go on from gets its own id for a name instead of its user's."""
    user = request.user if request.store is False else None
    return request.prompt_cache_key or history.session or user or ""


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
        "reasoning.context": reasoning and reasoning.context not in (None, "auto"),
        "text.verbosity": verbosity not in (None, "medium"),
    }
    included = (f"include {each}" for each in request.include or () if each not in ACTED_ON)
    caching = request.prompt_cache_options
    unused = () if caching is None else caching.no_effect
    return (*(name for name, given in fields.items() if given), *included, *unused)


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
