"""A request for a message as an input, whose paths are those of the body of `/v1/messages`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from quire.server.apis.anthropic.cache_marks import SECONDS, CacheMarks
from quire.server.apis.anthropic.edits import check_edits
from quire.server.apis.anthropic.protocol import CountTokensRequest, MessagesRequest
from quire.server.apis.anthropic.tools import tool_choice, tools
from quire.server.apis.anthropic.turns import TurnConverter
from quire.server.apis.protocol.caching import MAX_NAME_CHARS
from quire.server.apis.protocol.parse import error_at, invalid, missing
from quire.server.apis.protocol.structured import read_json_schema
from quire.server.apis.protocol.unknown_fields import UnknownFields
from quire.server.errors import RequestError
from quire.server.generation.input import (
    ChatInput,
    InputMessage,
    OutputOptions,
    TemplateOptions,
)
from quire.server.generation.reasoning_options import EFFORT, NO_EFFORT, SWITCHES
from quire.server.grammars.source import GrammarSource
from quire.server.tenancy.latency_targets import LatencyTargets
from quire.server.text.chat_template import ChatTemplate

MAX_NAMED = 8
"""Paths of what changes nothing that are named."""
_FORMAT_NAME = "output"


class ModelReasoning(NamedTuple):
    """The model's chat template, and whether it is known how the model writes its reasoning."""

    template: ChatTemplate | None
    has_format: bool


class ReasoningRequest(NamedTuple):
    """The extent of the reasoning, as an input has it, and the paths of what changes nothing."""

    effort: str | None = None
    budget: int | None = None
    kwargs: Mapping[str, object] = {}
    is_sent: bool = True
    no_effect: tuple[str, ...] = ()


def chat_input(
    request: CountTokensRequest,
    no_effect: tuple[str, ...],
    model: ModelReasoning,
    unknown: UnknownFields,
) -> ChatInput:
    """Return the request as an input, whose unknown fields `unknown` gathers. Raises
    RequestError."""
    marks = CacheMarks()
    offered = tools(request.tools or [], unknown, marks)
    conversation = _conversation(request, unknown, marks)
    messages, reasoning = conversation.messages(), _reasoning(request, model)
    check_edits(request.context_management, unknown)
    session = _session(request)
    unread = (*session.no_effect, *reasoning.no_effect, *offered.no_effect)
    unread += (*conversation.no_effect,)
    return ChatInput(
        messages=messages,
        options=_options(request, session.name, marks),
        tools=offered.tools,
        choice=tool_choice(request.tool_choice, offered),
        template=TemplateOptions(continues=_continues(messages), kwargs=reasoning.kwargs),
        effort=reasoning.effort,
        thinking_token_budget=reasoning.budget,
        include_reasoning=reasoning.is_sent,
        keeps_order=True,
        num_cached=conversation.num_cached,
        num_cached_long=conversation.num_cached_long,
        no_effect=(*no_effect, *_named(unread)),
        ignored=unknown.ignored,
    )


class NamedSession(NamedTuple):
    """The name of a conversation, and the paths of what beside it changes nothing."""

    name: str = ""
    no_effect: tuple[str, ...] = ()


def _session(request: CountTokensRequest) -> NamedSession:
    """Return the name that `metadata` has for the conversation. Raises RequestError."""
    if not isinstance(request, MessagesRequest) or request.metadata is None:
        return NamedSession()
    name, path = request.metadata.get("user_id"), "metadata.user_id"
    if not isinstance(name, str | None):
        raise invalid(path, "must be a string")
    if name is not None and len(name) > MAX_NAME_CHARS:
        raise invalid(path, f"has {len(name)} characters, at most {MAX_NAME_CHARS} are allowed")
    has_more = any(key != "user_id" for key in request.metadata)
    return NamedSession(name or "", ("metadata",) if has_more else ())


def _options(request: CountTokensRequest, session: str, marks: CacheMarks) -> OutputOptions:
    thinking, longest = request.thinking, marks.longest
    is_off = thinking is not None and thinking.type == "disabled"
    paths = {
        EFFORT: "thinking" if is_off else "output_config.effort",
        "thinking_token_budget": "thinking.budget_tokens",
        "retention_s": "" if longest is None else longest.where,
    }
    grammar = _grammar(request)
    if not isinstance(request, MessagesRequest):
        return OutputOptions(model=request.model, grammar=grammar, paths=paths)
    return OutputOptions(
        model=request.model,
        stream=bool(request.stream),
        return_progress=bool(request.stream),
        max_tokens=request.max_tokens,
        cuts_max_tokens=True,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        stop=tuple(request.stop_sequences or ()),
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
        targets=LatencyTargets(request.target_ttft_ms, request.target_itl_ms),
        session=session,
        retention_s=None if longest is None else SECONDS[longest.ttl],
        grammar=grammar,
        paths=paths,
    )


def _named(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the first paths, and how many there are besides."""
    num_more = len(paths) - MAX_NAMED
    return (*paths[:MAX_NAMED], *((f"{num_more} more",) if num_more > 0 else ()))


def _conversation(
    request: CountTokensRequest, unknown: UnknownFields, marks: CacheMarks
) -> TurnConverter:
    """Return the messages; a mark of the whole request stands at its end. Raises RequestError."""
    conversation = TurnConverter(unknown, marks)
    if request.system:
        conversation.add_system(request.system, "system")
    for index, turn in enumerate(request.messages):
        conversation.add_turn(turn, f"messages[{index}]")
    if request.cache_control is not None:
        conversation.add_mark(request.cache_control, "cache_control")
    return conversation


def _continues(messages: Sequence[InputMessage]) -> bool:
    """Return whether the answer goes on with the last message. Raises RequestError where it
    cannot."""
    last = messages[-1]
    if last.role == "assistant" and last.tool_calls:
        raise RequestError(
            f"'{last.path}' calls tools, and no message after it holds their results: send a "
            "'tool_result' for each.",
            param=last.path,
        )
    return last.role == "assistant"


def _reasoning(request: CountTokensRequest, model: ModelReasoning) -> ReasoningRequest:
    """Return whether and how long the model reasons. A model that is not known to reason keeps any
    limit. Raises RequestError."""
    thinking = request.thinking
    effort = request.output_config.effort if request.output_config else None
    if thinking is None:
        return ReasoningRequest(_effort(effort))
    budget, path = thinking.budget_tokens, "thinking.budget_tokens"
    if thinking.type == "enabled" and budget is None:
        raise missing(path)
    if thinking.type != "enabled" and budget is not None:
        message = f"'{path}' is only allowed with the 'thinking.type' 'enabled'."
        raise RequestError(message, param=path)
    if thinking.type == "disabled":
        no_effect = () if effort is None else ("output_config.effort",)
        return ReasoningRequest(NO_EFFORT, no_effect=no_effect)
    switches = [] if model.template is None else model.template.read(SWITCHES)
    return ReasoningRequest(
        _effort(effort),
        budget if model.has_format else None,
        dict.fromkeys(switches, True),
        thinking.display != "omitted",
        () if model.has_format else ("thinking",),
    )


def _effort(effort: str | None) -> str | None:
    """Return the effort in a chat's words, which have none for more than `xhigh`."""
    return "xhigh" if effort == "max" else effort


def _grammar(request: CountTokensRequest) -> GrammarSource | None:
    """Return the form that the text must have. Raises RequestError."""
    newer = request.output_config.format if request.output_config else None
    older = request.output_format
    if newer is not None and older is not None:
        raise RequestError(
            "'output_format' is the older name of 'output_config.format'; give one of them.",
            param="output_format",
        )
    given, path = (older, "output_format") if newer is None else (newer, "output_config.format")
    if given is None:
        return None
    if given.get("type") != "json_schema":
        raise invalid(f"{path}.type", "must be 'json_schema'")
    schema = {key: each for key, each in given.items() if key != "type" and each is not None}
    try:
        return read_json_schema({"name": _FORMAT_NAME, **schema}, "", path)
    except PydanticCustomError as error:
        raise error_at(error, path) from None
