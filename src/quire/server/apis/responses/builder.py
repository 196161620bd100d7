"""The object of a response: what the client asked, what came of it so far, and how it ended."""

from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.apis.responses.asked import EchoedFields
from quire.server.apis.responses.output import ItemOptions
from quire.server.apis.responses.protocol import (
    Anything,
    FailureDetails,
    IncompleteDetails,
    ResponseBody,
    ResponseUsage,
)
from quire.server.generation.usage import (
    CachedTokens,
    ChoiceAccount,
    CompletionTokensDetails,
    Usage,
)


class Origin(NamedTuple):
    """The id of a response, when it was created (seconds since 1970), and the name of its model;
    whether it is stored."""

    id: str
    created_s: int
    model: str
    is_stored: bool = False


class BodyBuilder:
    """Builds the object of one response, again for each time that it is told."""

    def __init__(self, asked: EchoedFields, origin: Origin) -> None:
        self.origin = origin
        self._asked = asked

    def item_options(self, *, is_parsed: bool) -> ItemOptions:
        """Return how the items of the output are made; `is_parsed` says whether it has parts."""
        return ItemOptions(self._asked.renamed_tools, self._asked.seals_reasoning, is_parsed)

    def body(
        self,
        status: str,
        output: tuple[Anything, ...] = (),
        usage: Usage | None = None,
        failure: FailureDetails | None = None,
        account: ChoiceAccount | UnsetType = UNSET,
    ) -> ResponseBody:
        """Return the response as it is now."""
        asked, origin, raw = self._asked, self.origin, msgspec.Raw
        is_cut = status == "incomplete"
        return ResponseBody(
            id=origin.id,
            created_at=origin.created_s,
            model=origin.model,
            status=status,
            output=output,
            usage=None if usage is None else _usage(usage),
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            instructions=raw(asked.instructions),
            metadata=raw(asked.metadata),
            parallel_tool_calls=asked.parallel_tool_calls,
            tool_choice=raw(asked.tool_choice),
            tools=raw(asked.tools),
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_logprobs=asked.top_logprobs,
            max_output_tokens=asked.max_output_tokens,
            reasoning={"effort": asked.effort, "summary": None},
            text=raw(asked.text),
            user=raw(asked.user),
            error=failure,
            previous_response_id=asked.previous_response_id,
            truncation=asked.truncation,
            background=asked.background,
            store=origin.is_stored,
            prompt_cache_key=asked.prompt_cache_key,
            prompt_cache_retention=asked.prompt_cache_retention,
            prompt_cache_options=asked.prompt_cache_options,
            quire=account,
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
