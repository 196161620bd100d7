"""Reads calls whose parameters stand in tags: their values are text, and become JSON as the tool's
schema says."""

from collections.abc import Callable, Mapping

from quire.server.parsers.formats import TaggedCall
from quire.server.parsers.json_scanner import JsonScanner, NotJson
from quire.server.parsers.markup import (
    MAX_NAME_CHARS,
    CallWriter,
    NotACall,
    read_as_json,
    to_json,
)
from quire.server.parsers.text_source import Reading

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def read_tagged_call(syntax: TaggedCall, closes: str, writer: CallWriter) -> Reading[None]:
    """Read a call whose parameters stand in tags, in a section that ends with the tag `closes`.
    Raises NotACall."""
    source = writer.source
    name = yield from _read_name(syntax, writer)
    writer.begin(name)
    writer.add("{")
    properties = writer.tools[name].get("properties")
    known: set[str] = set()
    while True:
        source.mark()
        yield from source.skip_space()
        if not (yield from source.accept(syntax.key_open)):
            break
        key = yield from _read_key(syntax.key_close, writer)
        if syntax.value_open:
            yield from source.skip_space()
        if key in known or not (yield from source.accept(syntax.value_open)):
            raise NotACall
        source.unmark()
        writer.add(f"{', ' if known else ''}{to_json(key)}: ")
        known.add(key)
        value = _ValueReader(syntax, closes, writer)
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        if _is_text(schema):
            yield from value.send_text()
        else:
            writer.add((yield from value.read()))
    if not (syntax.close and (yield from source.accept(syntax.close))):
        if any(tag.startswith(source.rest()) for tag in (syntax.key_open, syntax.close)):
            raise NotACall  # the output was cut: more parameters might have come
        source.rewind()
    writer.add("}")
    writer.end()


def _read_name(syntax: TaggedCall, writer: CallWriter) -> Reading[str]:
    name = ""
    while (found := (yield from writer.source.read_until((*syntax.name_stops,)))).tag is None:
        name += found.text
        if not found.text or len(name) > MAX_NAME_CHARS:
            raise NotACall
    has_closed = yield from writer.source.accept(syntax.name_close)
    if not has_closed and syntax.name_close.startswith(writer.source.rest()):
        raise NotACall  # the output was cut: parameters might have come
    return (name + found.text).strip()


def _is_text(schema: object) -> bool:
    """Return whether a value can be nothing but text, which is sent as it comes."""
    return not isinstance(schema, Mapping) or schema.get("type") == "string"


def _read_key(tag: str, writer: CallWriter) -> Reading[str]:
    """Return the text before a tag, and read the tag."""
    parts: list[str] = []
    while (found := (yield from writer.source.read_until((tag,)))).tag is None:
        if not found.text:
            raise NotACall
        parts.append(found.text)
    yield from writer.source.accept(tag)
    return "".join((*parts, found.text))


class _ValueReader:
    """Reads a value and the tag after it. A closing tag ends the value where the next parameter or
    the end of the call follows; elsewhere it is a part of the text.

    A line end after the opening tag and one before the closing tag are no part of a text.
    """

    def __init__(self, syntax: TaggedCall, closes: str, writer: CallWriter) -> None:
        self._tag = syntax.value_close
        self._after = tuple(tag for tag in (syntax.key_open, syntax.close, closes) if tag)
        self._writer = writer
        self._source = writer.source

    def read(self) -> Reading[str]:
        """Return a value as JSON. One that is JSON ends where the JSON does, as a string in it may
        hold the tag; any other is text."""
        self._source.mark()
        value = yield from self._read_json()
        if value is not None:
            self._source.unmark()
            return value
        self._source.rewind()
        parts: list[str] = []
        yield from self._read_text(parts.append)
        text = "".join(parts)
        return read_as_json(_PYTHON_WORDS.get(text, text)) or to_json(text)

    def send_text(self) -> Reading[None]:
        """Send a text as a JSON string while it comes."""
        self._writer.add('"')
        yield from self._read_text(lambda text: self._writer.add(to_json(text)[1:-1]))
        self._writer.add('"')

    def _read_text(self, send: Callable[[str], None]) -> Reading[None]:
        source, tag = self._source, self._tag
        yield from source.accept("\n")
        while True:
            found = yield from source.read_until((f"\n{tag}", tag))
            send(found.text)
            if found.tag is None and not found.text:
                raise NotACall
            if found.tag is None:
                continue
            is_end = yield from source.comes_before(found.tag, self._after)
            source.take(len(found.tag))
            if is_end:
                return
            if is_end is None:  # the output was cut
                source.take(len(source.rest()))
                raise NotACall
            send(found.tag)

    def _read_json(self) -> Reading[str | None]:
        scanner, source = JsonScanner(), self._source
        parts: list[str] = []
        while not scanner.is_done and (yield from source.wait()):
            try:
                number, made = scanner.scan(source.rest())
            except NotJson:
                return None
            source.take(number)
            parts.append(made)
        yield from source.skip_space()
        has_ended = scanner.is_done and (yield from source.accept(self._tag))
        return read_as_json("".join(parts)) if has_ended else None
