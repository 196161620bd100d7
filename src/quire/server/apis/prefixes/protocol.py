"""`POST /v1/prefixes`: a prefix that is to be pinned, and how it is shown."""

from typing import Annotated

import msgspec
from pydantic import Field, StringConstraints

from quire.server.apis.protocol.chat import (
    MAX_TEMPLATE_CHARS,
    ChatRequest,
    Documents,
    Effort,
    Messages,
    TemplateKwargs,
)
from quire.server.apis.protocol.completions import Prompts
from quire.server.apis.protocol.fields import MAX_PRIORITY, StrictModel
from quire.server.apis.protocol.tools import Tools
from quire.server.models.pinned_prefix import Prefix

MAX_NAME_CHARS = 64
MAX_TTL_S = 366 * 86400.0


class PrefixFields(StrictModel):
    """The fields of a prefix, however its text is given. It is pinned for `ttl_s` seconds, without
    it until it is deleted. `name` is for people. Less `priority` is sooner; `deadline_ms` counts
    from the arrival of the request."""

    model: str | None = None
    name: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)] | None = None
    ttl_s: Annotated[float, Field(gt=0, le=MAX_TTL_S)] | None = None
    add_special_tokens: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    deadline_ms: Annotated[float, Field(gt=0)] | None = None


class PrefixTextRequest(PrefixFields):
    """A text or token ids that prompts of completions begin with."""

    prompt: Prompts


class PrefixChatRequest(PrefixFields):
    """Messages and tools that conversations begin with. No answer is begun behind them."""

    messages: Messages
    tools: Tools | None = None
    documents: Documents | None = None
    chat_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE_CHARS)] | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    reasoning_effort: Effort | None = None

    def as_chat(self) -> ChatRequest:
        """Return a conversation whose prompt begins with the prefix."""
        return ChatRequest(
            messages=self.messages,
            tools=self.tools,
            documents=self.documents,
            chat_template=self.chat_template,
            chat_template_kwargs=self.chat_template_kwargs,
            reasoning_effort=self.reasoning_effort,
            add_special_tokens=self.add_special_tokens,
            add_generation_prompt=False,
        )


class PrefixList(msgspec.Struct, frozen=True):
    data: tuple[Prefix, ...]
    object: str = "list"


class PrefixDeleted(msgspec.Struct, frozen=True):
    """The prefix is pinned no more: its blocks may be evicted."""

    id: str
    deleted: bool = True
    object: str = "prefix.deleted"
