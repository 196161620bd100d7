"""The answers to requests for messages, as one body or as events, in Anthropic's form. UNSET fields
are left out."""

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.generation.usage import ChoiceAccount

Anything: TypeAlias = object


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str = ""
    citations: None = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """Holds what the model thought in plain text; `signature` is a digest of that."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool; `input` is an object."""

    id: str
    name: str
    input: Anything


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class OutputTokensDetails(msgspec.Struct, frozen=True):
    thinking_tokens: int


class CacheCreation(msgspec.Struct, frozen=True):
    """The tokens that are in the prefix cache now, by the time that their `cache_control` asks
    for."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class MessageUsage(msgspec.Struct, frozen=True):
    """The tokens of the prompt are those found in the prefix cache (`cache_read_input_tokens`),
    those up to the last `cache_control` that are in it now (`cache_creation_input_tokens`, in parts
    in `cache_creation`), and all others (`input_tokens`). `output_tokens_details` is left out where
    outputs are not parsed for reasoning."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation: CacheCreation = CacheCreation()
    output_tokens_details: OutputTokensDetails | UnsetType = UNSET


class MessageBody(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the assistant; of a stream's beginning it has no content yet."""

    id: str
    model: str
    content: tuple[Block, ...]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    role: str = "assistant"
    quire: ChoiceAccount | UnsetType = UNSET


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    message: MessageBody


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """Says that the prompt is being computed."""


class ContentBlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class BlockTextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    text: str


class BlockThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class BlockSignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    signature: str


class BlockInputDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


BlockPart: TypeAlias = BlockTextDelta | BlockThinkingDelta | BlockSignatureDelta | BlockInputDelta


class ContentBlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: BlockPart


class ContentBlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    index: int


class MessageEnding(msgspec.Struct, frozen=True):
    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The end of a message; `usage` is that of all of it."""

    delta: MessageEnding
    usage: MessageUsage
    quire: ChoiceAccount | UnsetType = UNSET


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    pass


Event: TypeAlias = (
    MessageStart
    | Ping
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
)
EVENTS = (
    MessageStart,
    Ping,
    ContentBlockStart,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
)


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int
