"""Kinds of content blocks with their fields, and those of turns and tools: known ones, and those
that Anthropic's answers have and that say nothing to a model."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from quire.server.apis.anthropic.cache_marks import CacheMarks
from quire.server.apis.protocol.chat import MAX_PARTS
from quire.server.apis.protocol.parse import invalid, missing, string_of, unsupported
from quire.server.apis.protocol.unknown_fields import Place, UnknownFields

TURN = Place(
    frozenset(("role", "content", "cache_control")),
    frozenset(
        (
            *("id", "type", "model", "usage", "container", "context_management"),
            *("stop_reason", "stop_sequence", "stop_details"),
        )
    ),
)
"""A turn; clients send whole answers back."""
_WRITTEN = frozenset(("citations", "caller", "toolset_name"))
"""Fields of blocks which say where the block in an answer of Anthropic's is from."""


def _block(*fields: str, kept_out: frozenset[str] = _WRITTEN) -> Place:
    return Place(frozenset(("type", *fields, "cache_control")), kept_out)


BLOCKS: Mapping[str, Place] = {
    "text": _block("text"),
    "tool_result": _block("tool_use_id", "content", "is_error"),
    "tool_use": _block("id", "name", "input"),
    "thinking": _block("thinking", "signature"),
    "redacted_thinking": _block("data"),
    "document": _block("source", "title", "context", kept_out=frozenset()),
    "search_result": _block("source", "title", "content", kept_out=frozenset()),
    "tool_reference": _block("tool_name"),
    "compaction": _block("content"),
}
"""Kinds of blocks of which something reaches the model, or which are known to be opaque."""
LEFT_OUT = frozenset(
    (
        *("server_tool_use", "mcp_tool_use", "mcp_tool_result"),
        *("web_search_tool_result", "web_fetch_tool_result", "tool_search_tool_result"),
        *("code_execution_tool_result", "bash_code_execution_tool_result"),
        *("text_editor_code_execution_tool_result", "advisor_tool_result"),
        *("container_upload", "fallback"),
    )
)
"""Kinds of blocks of tools that Anthropic runs: a model that does not know these cannot read
them."""


class ReadBlock(NamedTuple):
    """The known fields of a block, its kind and its path."""

    fields: Mapping[str, object]
    kind: str
    where: str


class BlockReader:
    """Reads the blocks of one request, whose unknown fields `unknown` gathers, and whose `marks`
    say what of it is to be cached. A block is read before its own mark, which is at its end."""

    def __init__(self, unknown: UnknownFields, marks: CacheMarks) -> None:
        self.unknown = unknown
        self.marks = marks

    def blocks(self, content: object, path: str) -> Iterator[ReadBlock]:
        """Yield the blocks of a content. Raises RequestError."""
        if content is None:
            raise missing(path)
        if not isinstance(content, list) or not content:
            raise invalid(path, "must be a string or a list of blocks that is not empty")
        if len(content) > MAX_PARTS:
            raise invalid(path, f"has {len(content)} blocks, at most {MAX_PARTS} are allowed")
        for index, block in enumerate(content):
            where = f"{path}[{index}]"
            if not isinstance(block, dict):
                raise invalid(where, "must be an object")
            kind = string_of(block, "type", where)
            if kind in LEFT_OUT:
                yield ReadBlock(block, kind, where)
            elif kind in BLOCKS:
                yield ReadBlock(self.unknown.known(block, BLOCKS[kind], where), kind, where)
            else:
                raise unsupported(f"{where}.type")

    def leave_out_or_refuse(self, kind: str, where: str) -> None:
        """Leave out a block that no model here can read. Raises RequestError for one that has no
        place where it is."""
        if kind not in LEFT_OUT:
            raise unsupported(f"{where}.type", "here")
        self.unknown.leave_out(where)
