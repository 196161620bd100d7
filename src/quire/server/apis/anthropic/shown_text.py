"""Text of blocks that are not plain text: documents, results of a search, references to tools."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from quire.server.apis.anthropic.fields import BlockReader
from quire.server.apis.protocol.parse import invalid, string_of, unsupported

Block: TypeAlias = Mapping[str, object]
TEXT = "text"


def text_of(block: Block, kind: str, where: str, reader: BlockReader) -> str:
    """Return the text of a block of a kind in `SHOWN`. Raises RequestError."""
    return SHOWN[kind](block, where, reader)


def texts_in(
    content: object, path: str, reader: BlockReader, kinds: Collection[str] = (TEXT,)
) -> list[str]:
    """Return the text of each block of a content that holds blocks of these kinds of `SHOWN`; a
    string is one text. Raises RequestError."""
    if isinstance(content, str):
        return [content]
    if content == []:
        return []
    texts = []
    for block, kind, where in reader.blocks(content, path):
        if kind in kinds:
            texts.append(text_of(block, kind, where, reader))
        else:
            reader.leave_out_or_refuse(kind, where)
        reader.marks.read(block, where)
    return texts


def _plain(block: Block, where: str, reader: BlockReader) -> str:
    return string_of(block, "text", where)


def _document(block: Block, where: str, reader: BlockReader) -> str:
    """Return the title, the context and the text of a document. Raises RequestError for one that is
    no text."""
    source, path = block.get("source"), f"{where}.source"
    if not isinstance(source, dict):
        raise invalid(path, "must be an object")
    kind = string_of(source, "type", path)
    if kind == "text":
        texts = [string_of(source, "data", path)]
    elif kind == "content":
        texts = texts_in(source.get("content"), f"{path}.content", reader)
    else:
        raise unsupported(f"{path}.type", "but 'text' and 'content': it reads no other documents")
    return _joined(block, where, ("title", "context"), texts)


def _search_result(block: Block, where: str, reader: BlockReader) -> str:
    texts = texts_in(block.get("content"), f"{where}.content", reader)
    return _joined(block, where, ("title", "source"), texts)


def _tool_reference(block: Block, where: str, reader: BlockReader) -> str:
    return string_of(block, "tool_name", where)


def _compaction(block: Block, where: str, reader: BlockReader) -> str:
    """Return what stands for the conversation so far, nothing where that could not be made."""
    return "" if block.get("content") is None else string_of(block, "content", where)


def _joined(block: Block, where: str, names: Sequence[str], texts: Sequence[str]) -> str:
    heads = [string_of(block, name, where) for name in names if block.get(name) is not None]
    return "\n".join((*heads, *texts))


SHOWN: Mapping[str, Callable[[Block, str, BlockReader], str]] = {
    TEXT: _plain,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
    "compaction": _compaction,
}
"""Kinds of blocks whose text the model reads."""
