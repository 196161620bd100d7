"""Parts of an output as content blocks: joined, or one event after the other. Both are made of the
same parts in the same order, so that they cannot differ."""

import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import groupby
from typing import TypeAlias

import msgspec
from pydantic_core import from_json

from quire.server.apis.anthropic.wire import (
    Block,
    BlockInputDelta,
    BlockPart,
    BlockSignatureDelta,
    BlockTextDelta,
    BlockThinkingDelta,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Event,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from quire.server.generation.context import TextOptions
from quire.server.generation.output_delta import OutputDelta
from quire.server.parsers.events import (
    CallArgumentsDelta,
    CallStart,
    ContentDelta,
    ReasoningTextDelta,
)

Part: TypeAlias = ContentDelta | ReasoningTextDelta | CallStart | CallArgumentsDelta


def parts_of(delta: OutputDelta, options: TextOptions) -> Iterator[Part]:
    """Yield what a delta has of the text, of reasoning that is sent, and of calls, in their
    order."""
    if not options.parsing.is_needed and delta.text:
        yield ContentDelta(delta.text)
    for part in delta.parts:
        if isinstance(part, ContentDelta | CallStart | CallArgumentsDelta):
            yield part
        elif isinstance(part, ReasoningTextDelta) and options.include_reasoning:
            yield part


def _key(part: Part) -> tuple[bool, int]:
    """Return what the parts of a block have alike."""
    if isinstance(part, CallStart | CallArgumentsDelta):
        return True, part.number
    return False, int(isinstance(part, ReasoningTextDelta))


_REASONING = False, 1


def signature_of(texts: Iterable[str]) -> str:
    """Return what stands for the signature of a thinking block, which clients want: a digest of its
    text. It is not checked when the block comes back."""
    digest = sha256()
    for text in texts:
        digest.update(text.encode(errors="replace"))
    return digest.hexdigest()


def joined_blocks(parts: Iterable[Part]) -> tuple[Block, ...]:
    """Return the blocks of a whole output."""
    return tuple(_block(list(each)) for _, each in groupby(parts, _key))


def _block(parts: list[Part]) -> Block:
    first, texts = parts[0], [part.text for part in parts if not isinstance(part, CallStart)]
    if isinstance(first, CallStart):
        return ToolUseBlock(first.id or "", first.name, _input("".join(texts)))
    if isinstance(first, ContentDelta):
        return TextBlock("".join(texts))
    return ThinkingBlock("".join(texts), signature_of(texts))


def _input(arguments: str) -> object:
    """Return the object that arguments are, of those that were cut off as much as is complete:
    clients make the same of the parts of a stream."""
    try:
        from_json(arguments, allow_inf_nan=False)
        return msgspec.Raw(arguments.encode())
    except ValueError:
        pass
    try:
        value = from_json(arguments, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return {}
    return msgspec.Raw(json.dumps(value).encode()) if isinstance(value, dict) else {}


class BlockStream:
    """Makes events of the parts of an output, one block after the other."""

    def __init__(self) -> None:
        self._index = -1
        self._key: tuple[bool, int] | None = None
        self._digest = sha256()

    def add(self, part: Part) -> list[Event]:
        """Return the events of the next part."""
        events: list[Event] = []
        if _key(part) != self._key:
            events += self.end()
            self._key, self._digest = _key(part), sha256()
            self._index += 1
            events.append(ContentBlockStart(self._index, _beginning(part)))
        if isinstance(part, ReasoningTextDelta):
            self._digest.update(part.text.encode(errors="replace"))
        delta = _delta(part)
        return events if delta is None else [*events, ContentBlockDelta(self._index, delta)]

    def end(self) -> list[Event]:
        """Return the events that end the block, if there is one."""
        if self._key is None:
            return []
        events: list[Event] = []
        if self._key == _REASONING:
            signature = BlockSignatureDelta(self._digest.hexdigest())
            events.append(ContentBlockDelta(self._index, signature))
        self._key = None
        return [*events, ContentBlockStop(self._index)]


def _beginning(part: Part) -> Block:
    """Return a block as it begins, without what its deltas bring."""
    if isinstance(part, CallStart):
        return ToolUseBlock(part.id or "", part.name, {})
    return TextBlock() if isinstance(part, ContentDelta) else ThinkingBlock()


def _delta(part: Part) -> BlockPart | None:
    if isinstance(part, CallStart):
        return None
    if isinstance(part, CallArgumentsDelta):
        return BlockInputDelta(part.text)
    return (
        BlockTextDelta(part.text)
        if isinstance(part, ContentDelta)
        else BlockThinkingDelta(part.text)
    )
