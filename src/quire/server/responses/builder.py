"""The object of a response: what the client asked, what came of it so far, and how it ended."""

from typing import NamedTuple

from quire.server.openai.protocol.wire import CachedTokens, CompletionTokensDetails, Usage
from quire.server.responses.protocol import (
    Anything,
    FailureDetails,
    IncompleteDetails,
    ResponseBody,
    ResponsesRequest,
    ResponseUsage,
)


class Origin(NamedTuple):
    """The id of a response, when it was created (seconds since 1970), and the name of its model;
    whether it is stored, and whether it runs without a connection."""

    id: str
    created_s: int
    model: str
    is_stored: bool = False
    in_background: bool = False


class BodyBuilder:
    """Builds the object of one response, again for each time that it is told."""

    def __init__(self, request: ResponsesRequest, origin: Origin) -> None:
        self.origin = origin
        self._request = request

    def body(
        self,
        status: str,
        output: tuple[Anything, ...] = (),
        usage: Usage | None = None,
        failure: FailureDetails | None = None,
    ) -> ResponseBody:
        """Return the response as it is now."""
        request, origin = self._request, self.origin
        reasoning, text = request.reasoning, request.text
        is_cut = status == "incomplete"
        return ResponseBody(
            id=origin.id,
            created_at=origin.created_s,
            model=origin.model,
            status=status,
            output=output,
            usage=None if usage is None else _usage(usage),
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
            error=failure,
            background=origin.in_background,
            store=origin.is_stored,
        )


def _usage(usage: Usage) -> ResponseUsage:
    details = usage.completion_tokens_details or CompletionTokensDetails(0)
    return ResponseUsage(
        usage.prompt_tokens,
        usage.prompt_tokens_details or CachedTokens(0),
        usage.completion_tokens,
        details,
        usage.total_tokens,
    )
