"""A request for a response as its answer tells of it again. What may be long is JSON already: it is
encoded where the request is parsed, not on the event loop."""

from collections.abc import Mapping, Sequence

import msgspec

from quire.server.apis.responses.items.tools import ClientTool
from quire.server.apis.responses.protocol import SEALED_REASONING, ResponsesRequest


class EchoedFields(msgspec.Struct, frozen=True):
    """The fields that the answer repeats, those in bytes as JSON. `store` is null where the client
    leaves it to the server.

    input_items: the JSON of each item of the input where the response may be stored.
    renamed_tools: the client's tools by the names of the model, where these are others.
    seals_reasoning: whether items of reasoning have an `encrypted_content`.
    """

    instructions: bytes
    metadata: bytes
    tool_choice: bytes
    tools: bytes
    text: bytes
    user: bytes
    effort: str | None
    parallel_tool_calls: bool
    temperature: float | None
    top_p: float | None
    top_logprobs: int
    max_output_tokens: int | None
    previous_response_id: str | None
    background: bool
    store: bool | None
    truncation: str
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    prompt_cache_options: dict[str, str] | None
    input_items: tuple[bytes, ...] = ()
    renamed_tools: Mapping[str, ClientTool] = {}
    seals_reasoning: bool = False


def asked_of(
    request: ResponsesRequest,
    input_items: Sequence[dict[str, object]] = (),
    renamed_tools: Mapping[str, ClientTool] | None = None,
) -> EchoedFields:
    """Return what the answer tells of a request."""
    text, reasoning, encode = request.text, request.reasoning, msgspec.json.encode
    kept = input_items if request.store is not False else ()
    caching = request.prompt_cache_options
    return EchoedFields(
        instructions=encode(request.instructions),
        metadata=encode(request.metadata or {}),
        tool_choice=encode(request.tool_choice or "auto"),
        tools=encode(request.tools or []),
        text=encode({"format": (text and text.format) or {"type": "text"}}),
        user=encode(request.user),
        effort=reasoning.effort if reasoning else None,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        temperature=request.temperature,
        top_p=request.top_p,
        top_logprobs=request.top_logprobs or 0,
        max_output_tokens=request.max_output_tokens,
        previous_response_id=request.previous_response_id,
        background=request.background is True,
        store=request.store,
        truncation=request.truncation or "disabled",
        prompt_cache_key=request.prompt_cache_key,
        prompt_cache_retention=request.prompt_cache_retention,
        prompt_cache_options=None if caching is None else caching.echoed,
        input_items=tuple(encode(_as_listed(each)) for each in kept),
        renamed_tools=renamed_tools or {},
        seals_reasoning=SEALED_REASONING in (request.include or ()),
    )


def _as_listed(item: dict[str, object]) -> dict[str, object]:
    """Return an item of an input as the list of them shows it: a message has a type, and parts."""
    given = {key: value for key, value in item.items() if value is not None}
    if given.get("type", "message") != "message":
        return given
    content = given.get("content")
    if isinstance(content, str):
        kind = "output_text" if given.get("role") == "assistant" else "input_text"
        given["content"] = [{"type": kind, "text": content}]
    return {"type": "message", "status": "completed", **given}
