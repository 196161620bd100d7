"""The answer to a request for a response, made of that of the chat it became."""

import msgspec

from quire.server.http.sliced_json import SLICE, sliced_struct
from quire.server.openai.protocol.wire import (
    CachedTokens,
    ChatBody,
    ChatChoice,
    CompletionBody,
    CompletionTokensDetails,
    Usage,
)
from quire.server.responses.protocol import (
    CallItem,
    IncompleteDetails,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseBody,
    ResponsesRequest,
    ResponseUsage,
)

PREFIX = "resp"


class ResponseRewriter:
    """Makes a response of a whole chat completion."""

    def __init__(self, request: ResponsesRequest) -> None:
        self._request = request

    def rewrite(self, body: CompletionBody | ChatBody) -> ResponseBody:
        """Return the response that says what the chat completion says."""
        assert isinstance(body, ChatBody)
        request, choice = self._request, body.choices[0]
        is_cut = choice.finish_reason == "length"
        reasoning, text = request.reasoning, request.text
        items = _items(choice, body.id.removeprefix(PREFIX), is_cut=is_cut)
        return ResponseBody(
            id=body.id,
            created_at=body.created,
            model=body.model,
            status=_status(is_cut=is_cut),
            output=tuple(items),
            usage=_usage(body.usage),
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            instructions=request.instructions,
            metadata=request.metadata or {},
            parallel_tool_calls=request.parallel_tool_calls is not False,
            tool_choice=request.tool_choice or "auto",
            tools=request.tools or [],
            temperature=request.temperature,
            top_p=request.top_p,
            top_logprobs=request.top_logprobs or 0,
            max_output_tokens=request.max_output_tokens,
            reasoning={"effort": reasoning.effort if reasoning else None, "summary": None},
            text={"format": (text and text.format) or {"type": "text"}},
            user=request.user,
        )


def _status(*, is_cut: bool) -> str:
    return "incomplete" if is_cut else "completed"


def _items(choice: ChatChoice, suffix: str, *, is_cut: bool) -> list[OutputItem]:
    """Return the items of an output in their order. Where it was cut off, its last one is
    incomplete."""
    message, items = choice.message, list[OutputItem]()
    calls = message.tool_calls or ()
    if message.reasoning_content:
        parts = (ReasoningText(message.reasoning_content),)
        items.append(ReasoningItem(f"rs{suffix}", "completed", parts))
    if message.content or not (calls or items):
        logprobs = choice.logprobs.content if choice.logprobs else ()
        text = OutputText(message.content or "", logprobs)
        content = (sliced_struct(text) if len(logprobs) > SLICE else text,)
        items.append(MessageItem(f"msg{suffix}", "completed", content))
    for index, call in enumerate(calls):
        call_id, name = str(call.id), str(call.function.name)
        item_id = f"fc{suffix}-{index}"
        items.append(CallItem(item_id, "completed", call_id, name, call.function.arguments))
    items[-1] = msgspec.structs.replace(items[-1], status=_status(is_cut=is_cut))
    return items


def _usage(usage: Usage) -> ResponseUsage:
    details = usage.completion_tokens_details or CompletionTokensDetails(0)
    return ResponseUsage(
        usage.prompt_tokens,
        usage.prompt_tokens_details or CachedTokens(0),
        usage.completion_tokens,
        details,
        usage.total_tokens,
    )
