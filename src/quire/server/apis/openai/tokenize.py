"""`POST /tokenize`, of a text or of a conversation, and `POST /detokenize`: vLLM's fields."""

from typing import Annotated

from pydantic import Field

from quire.server.apis.protocol.chat import ChatRequest, Messages, TemplateKwargs
from quire.server.apis.protocol.fields import StrictModel, TokenId, at_most

MAX_TOKENS = 2**20
"""Token ids of one `/detokenize`."""


class TokenizeRequest(StrictModel):
    """A text."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChatRequest(StrictModel):
    """A conversation."""

    messages: Messages
    model: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def as_chat(self) -> ChatRequest:
        """Return the request whose prompt these tokens would be."""
        return ChatRequest(
            messages=self.messages,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template_kwargs=self.chat_template_kwargs,
            add_special_tokens=self.add_special_tokens,
        )


class DetokenizeRequest(StrictModel):
    """Tokens, or none."""

    tokens: Annotated[
        list[TokenId], Field(max_length=MAX_TOKENS, fail_fast=True), at_most(MAX_TOKENS)
    ]
    model: str | None = None
