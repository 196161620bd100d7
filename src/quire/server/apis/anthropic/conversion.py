"""A request for a message becomes a chat request, whose owners check and run it; errors name the
fields as the client of `/v1/messages` wrote them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quire.server.apis.anthropic.protocol import CountTokensRequest, MessagesRequest
from quire.server.apis.anthropic.tools import tool_choice, tools
from quire.server.apis.anthropic.turns import Conversation
from quire.server.errors import RequestError
from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.protocol.parse import validate
from quire.server.generation.reasoning_options import EFFORT, NO_EFFORT, SWITCHES
from quire.server.grammars.client_names import ClientNames
from quire.server.text.chat_template import ChatTemplate

_NAMES = (
    (r"\b(tools\[\d+\])\.function\.parameters\b", r"\1.input_schema"),
    (r"\b(tools\[\d+\])\.function\b", r"\1"),
    (r"\btool_choice\.function\b", "tool_choice"),
    (r'"required" or "none"', "'any' or 'none'"),
    (r"\btool_call_id\b", "tool_use_id"),
    (r"(\.tool_calls\[\d+\])\.function\.arguments\b", r"\1.input"),
    (r"\bthinking_token_budget\b", "thinking.budget_tokens"),
)
_LENGTHS = (
    (
        r"^The model's context is (\d+) tokens and 'messages' has (\d+): .*",
        r"prompt is too long: \2 tokens > \1 maximum",
    ),
    (
        r"^The model's context is (\d+) tokens; a text of \d+ characters has at least (\d+)\.",
        r"prompt is too long: at least \2 tokens > \1 maximum",
    ),
    (
        r"^The model's context is (\d+) tokens; 'messages' has (\d+) and the output is asked to "
        r"have up to (\d+): .*",
        r"input length and `max_tokens` exceed context limit: \2 + \3 > \1, decrease input length "
        r"or `max_tokens` and try again",
    ),
)
"""Says in Anthropic's words what does not fit the context: agents look for them, and ask for
less."""
MAX_NAMED = 8
"""Paths of what changes nothing that are named."""
_FORMAT = r"\bresponse_format(\.json_schema)?\b"
_FORMAT_NAME = "output"
_ALIKE = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"),
    *("cache_salt", "priority", "deadline_ms"),
)
"""Fields that a chat has under the same name."""


class AsChat(NamedTuple):
    """The chat that a request became, the names that the client has for its fields, and what was
    taken and changes nothing."""

    chat: ChatRequest
    names: ClientNames
    no_effect: tuple[str, ...]


class ModelReasoning(NamedTuple):
    """The model's chat template, and whether it is known how the model writes its reasoning."""

    template: ChatTemplate | None
    has_format: bool


def as_chat(request: CountTokensRequest, model: ModelReasoning) -> AsChat:
    """Return the request as a chat's. Raises RequestError."""
    conversation = _conversation(request)
    names = ClientNames(_patterns(request), conversation.origins, "messages")
    offered = tools(request.tools or [])
    reasoning, unread = _reasoning(request, model)
    fields: dict[str, object] = {
        "model": request.model,
        "messages": conversation.messages,
        "tools": offered.tools or None,
        **tool_choice(request.tool_choice),
        **reasoning,
        "response_format": _format(request),
        "continue_final_message": _continues(conversation) or None,
    }
    if isinstance(request, MessagesRequest):
        fields |= {name: getattr(request, name) for name in _ALIKE}
        fields |= {
            "max_tokens": request.max_tokens,
            "stop": request.stop_sequences,
            "stream": request.stream,
            "return_progress": request.stream,
        }
    try:
        chat = validate(fields, ChatRequest)
    except RequestError as error:
        raise names.error(error) from None
    return AsChat(chat, names, _named([*unread, *offered.no_effect, *conversation.no_effect]))


def _named(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the first paths, and how many there are besides."""
    num_more = len(paths) - MAX_NAMED
    return (*paths[:MAX_NAMED], *((f"{num_more} more",) if num_more > 0 else ()))


def _conversation(request: CountTokensRequest) -> Conversation:
    conversation = Conversation()
    if request.system:
        conversation.add_system(request.system, "system")
    for index, turn in enumerate(request.messages):
        conversation.add_turn(turn, f"messages[{index}]")
    conversation.end()
    return conversation


def _continues(conversation: Conversation) -> bool:
    """Return whether the answer goes on with the last message. Raises RequestError where it
    cannot."""
    last = conversation.messages[-1]
    if last["role"] != "assistant":
        return False
    if last.get("tool_calls"):
        where = conversation.origins[f"messages[{len(conversation.messages) - 1}]"]
        raise RequestError(
            f"'{where}' calls tools, and no message after it holds their results: send a "
            "'tool_result' for each.",
            param=where,
        )
    return True


def _patterns(request: CountTokensRequest) -> tuple[tuple[str, str], ...]:
    thinking, config = request.thinking, request.output_config
    is_off = thinking is not None and thinking.type == "disabled"
    has_config = config is not None and config.format is not None
    return (
        *_NAMES,
        *_LENGTHS,
        (_FORMAT, "output_config.format" if has_config else "output_format"),
        (r"\breasoning_effort\b", "thinking" if is_off else "output_config.effort"),
    )


def _reasoning(
    request: CountTokensRequest, model: ModelReasoning
) -> tuple[Mapping[str, object], tuple[str, ...]]:
    """Return the fields that say whether and how long the model reasons, and what of the request
    changes nothing. A model that is not known to reason keeps any limit."""
    thinking = request.thinking
    effort = request.output_config.effort if request.output_config else None
    if thinking is None:
        return {EFFORT: _effort(effort)}, ()
    budget, path = thinking.budget_tokens, "thinking.budget_tokens"
    if thinking.type == "enabled" and budget is None:
        raise RequestError(
            f"Missing required field '{path}'.", param=path, code="missing_required_parameter"
        )
    if thinking.type != "enabled" and budget is not None:
        message = f"'{path}' is only allowed with the 'thinking.type' 'enabled'."
        raise RequestError(message, param=path)
    if thinking.type == "disabled":
        return {EFFORT: NO_EFFORT}, () if effort is None else ("output_config.effort",)
    switches = [] if model.template is None else model.template.read(SWITCHES)
    fields = {
        EFFORT: _effort(effort),
        "chat_template_kwargs": dict.fromkeys(switches, True) or None,
        "thinking_token_budget": budget if model.has_format else None,
        "include_reasoning": False if thinking.display == "omitted" else None,
    }
    return fields, () if model.has_format else ("thinking",)


def _effort(effort: str | None) -> str | None:
    """Return the effort in a chat's words, which have none for more than `xhigh`."""
    return "xhigh" if effort == "max" else effort


def _format(request: CountTokensRequest) -> dict[str, object] | None:
    """Return the form that the text must have, as a chat's. Raises RequestError."""
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
        raise RequestError(f"Invalid '{path}.type': must be 'json_schema'.", param=f"{path}.type")
    schema = {key: each for key, each in given.items() if key != "type" and each is not None}
    return {"type": "json_schema", "json_schema": {"name": _FORMAT_NAME, **schema}}
