"""`POST /tokenize`, of a text or of a conversation, and `POST /detokenize`: vLLM's fields."""

from pydantic import BaseModel, JsonValue

from quire.server.protocol.chat import ChatRequest, Messages
from quire.server.protocol.fields import STRICT, TokenId


class TokenizeRequest(BaseModel):
    """A text."""

    model_config = STRICT

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChatRequest(BaseModel):
    """A conversation."""

    model_config = STRICT

    messages: Messages
    model: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def as_chat(self) -> ChatRequest:
        """The request whose prompt these tokens would be."""
        return ChatRequest(
            messages=self.messages,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template_kwargs=self.chat_template_kwargs,
            add_special_tokens=self.add_special_tokens,
        )


class DetokenizeRequest(BaseModel):
    """Tokens, or none."""

    model_config = STRICT

    tokens: list[TokenId]
    model: str | None = None
