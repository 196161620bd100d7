"""The incremental parser of outputs: text comes in, as it is split by tokens or whole, and events
come out. The events joined are the same for every split.

Nothing is lost: what turns out not to be a call is content. Markup, and the white space beside it,
reaches neither content nor reasoning. In an answer that a grammar enforces nothing is markup. Where
a text was cut off before it said whether a call comes, what had come of the call is dropped.
"""

from dataclasses import dataclass, field, replace

from quire.server.parsers.events import CallEnd, ContentDelta, Event, ReasoningTextDelta
from quire.server.parsers.formats import (
    HeadedCall,
    JsonCall,
    ReasoningFormat,
    TaggedCall,
    ToolFormat,
)
from quire.server.parsers.json_calls import read_headed_call, read_json_call
from quire.server.parsers.markup import CallWriter, NotACall, Tools, are_whole_calls
from quire.server.parsers.python_calls import read_python_call
from quire.server.parsers.tagged_calls import read_tagged_call
from quire.server.parsers.text_source import SPACE, Reading, TextSource


@dataclass(frozen=True, slots=True)
class ParserOptions:
    """The options say what the outputs of a request are parsed for; by default for nothing.

    tools: those that may be called, in `tool_format`.
    one_call: the output ends with its first call.
    in_reasoning: the prompt has opened the reasoning.
    is_enforced: a grammar holds the output to reasoning, then calls alone or an answer, whose text
        may hold anything.
    has_calls_alone: the grammar allows no answer beside calls.
    is_thought_out: the prompt has closed the reasoning, so that an enforced answer has none.
    """

    tool_format: ToolFormat | None = None
    tools: Tools = field(default_factory=dict)
    one_call: bool = False
    reasoning: ReasoningFormat | None = None
    in_reasoning: bool = False
    is_enforced: bool = False
    has_calls_alone: bool = False
    is_thought_out: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether outputs can hold anything but content."""
        return self.tool_format is not None or self.reasoning is not None

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags, which must reach the parser where they are special tokens."""
        reasoning = self.reasoning
        thinks = () if reasoning is None else reasoning.tags
        return thinks if self.tool_format is None else thinks + self.tool_format.tags


class _Prose:
    """Text between markup: white space waits until it is known not to stand beside a tag."""

    def __init__(
        self, make: type[ContentDelta] | type[ReasoningTextDelta], events: list[Event]
    ) -> None:
        self.is_blank = True
        self.is_after_tag = False
        self._make = make
        self._events = events
        self._space: list[str] = []

    def add(self, text: str) -> None:
        if self.is_after_tag:
            text = text.lstrip(SPACE)
        words = text.rstrip(SPACE)
        if words:
            self._events.append(self._make("".join((*self._space, words))))
            self._space.clear()
            self.is_blank = self.is_after_tag = False
        if len(words) < len(text):
            self._space.append(text[len(words) :])

    def meet_tag(self) -> None:
        """Drop the white space before a tag, and that which comes after it."""
        self._space.clear()
        self.is_after_tag = True

    def end(self) -> None:
        """Give out the white space that ends the text."""
        if self._space:
            self._events.append(self._make("".join(self._space)))


class OutputParser:
    """Parses the text of one output; `in_reasoning` while what has come is reasoning."""

    def __init__(self, options: ParserOptions) -> None:
        self._options = options
        self._format = options.tool_format
        self._events: list[Event] = []
        self._source = TextSource()
        self._content = _Prose(ContentDelta, self._events)
        self._reasoning = _Prose(ReasoningTextDelta, self._events)
        self._writer = CallWriter(self._source, options.tools, self._events, self._content.meet_tag)
        self._owed: str | None = None
        self._run = self._read()
        self._has_ended = False
        self._is_opened = False
        self.in_reasoning = options.in_reasoning

    @property
    def has_ended(self) -> bool:
        """Whether what may still come is not read: the one call that is allowed is complete."""
        return self._has_ended

    @property
    def in_call(self) -> bool:
        """Whether the arguments of a call are being read."""
        return self._writer.in_call

    def feed(self, text: str) -> list[Event]:
        """Return the events that the next part of the text makes."""
        self._source.feed(text)
        return self._advance()

    def end(self, *, is_cut: bool = False) -> list[Event]:
        """Return the events that are left once the text is complete. Where it `is_cut`, by a limit
        or a stop string, the beginning of a call whose name has not come is no content."""
        drops = is_cut and self._awaits_call
        self._source.end()
        events = self._advance()
        return [each for each in events if not isinstance(each, ContentDelta)] if drops else events

    @property
    def _awaits_call(self) -> bool:
        """Whether text that is still undecided can hardly be anything but part of a call: a tag has
        opened a section, nothing but calls may come, or nothing has come since the last one."""
        is_after_call = self._writer.num_begun > 0 and self._content.is_after_tag
        return self._is_opened or self._options.has_calls_alone or is_after_call

    def _advance(self) -> list[Event]:
        if self._has_ended:
            return []
        self._has_ended = next(self._run, self) is self
        events = self._events.copy()
        self._events.clear()
        if self._options.one_call:
            ends = [index for index, event in enumerate(events) if isinstance(event, CallEnd)]
            self._has_ended = self._has_ended or bool(ends)
            return events[: ends[0] + 1] if ends else events
        return events

    def _read(self) -> Reading[None]:
        if self._options.in_reasoning:
            yield from self._read_reasoning()
        if self._options.is_enforced:
            yield from self._read_enforced()
            return
        while not self._source.at_end:
            yield from self._read_first_section()
            found = yield from self._source.read_until(self._tags())
            self._content.add(found.text)
            yield from self._read_tag(found.tag)
        self._content.end()

    def _read_enforced(self) -> Reading[None]:
        """Read an output that a grammar enforces: a tag opens something only where the grammar lets
        it, before the answer begins."""
        reasoning, source = self._options.reasoning, self._source
        may_open = not (self._options.in_reasoning or self._options.is_thought_out)
        if reasoning is not None and may_open and (yield from source.accept(reasoning.opens)):
            yield from self._read_reasoning()
        while (yield from self._read_enforced_section()):
            pass
        if reasoning is not None and reasoning.answer_opens:
            yield from source.accept(reasoning.answer_opens)
        while (yield from source.wait()):
            self._content.add(source.take(len(source.rest())))
        self._content.end()

    def _read_enforced_section(self) -> Reading[bool]:
        """Read the section of calls that comes next; return False where none does."""
        form, source = self._format, self._source
        while (char := (yield from source.peek())) and char in SPACE:
            self._content.add(source.take(1))
        num_begun = self._writer.num_begun
        for tag in () if form is None else (*form.opens, *form.first_opens):
            if (yield from source.comes(tag)):
                yield from self._read_section(tag)
                return self._writer.num_begun > num_begun
        if form is not None and char and char in form.bare:
            yield from self._read_section("")
            return self._writer.num_begun > num_begun
        next_opens = "" if self._options.reasoning is None else self._options.reasoning.next_opens
        return bool(next_opens) and (yield from source.accept(next_opens))

    def _tags(self) -> tuple[str, ...]:
        """Return the tags that content may meet now."""
        form, reasoning = self._format, self._options.reasoning
        opens = () if form is None else form.opens
        thinks = () if reasoning is None else (reasoning.opens, *reasoning.markup)
        return opens + thinks + (() if self._owed is None else (self._owed,))

    def _read_tag(self, tag: str | None) -> Reading[None]:
        reasoning = self._options.reasoning
        if tag is None:
            yield from self._source.wait()
        elif reasoning is not None and tag == reasoning.opens:
            self._source.take(len(tag))
            yield from self._read_reasoning()
        elif tag == self._owed or (reasoning is not None and tag in reasoning.markup):
            self._source.take(len(tag))
            self._content.meet_tag()
            self._owed = None if tag == self._owed else self._owed
        else:
            yield from self._read_section(tag)

    def _read_reasoning(self) -> Reading[None]:
        """Read up to the closing tag; without one all of the text is reasoning, but for calls that
        end it: the model has then forgotten the tag."""
        assert self._options.reasoning is not None
        closes, form = self._options.reasoning.closes, self._format
        opens = () if form is None or self._options.is_enforced else form.opens
        self._content.meet_tag()
        self._reasoning.meet_tag()
        self.in_reasoning = True
        while (found := (yield from self._source.read_until((closes, *opens)))).tag != closes:
            self._reasoning.add(found.text)
            if found.tag is not None:
                yield from self._read_last_calls(found.tag, closes, opens)
            elif not (yield from self._source.wait()):
                self._reasoning.end()
                return
        self._reasoning.add(found.text)
        self._source.take(len(closes))
        self.in_reasoning = False
        self._reasoning.meet_tag()
        self._content.meet_tag()

    def _read_last_calls(self, tag: str, closes: str, opens: tuple[str, ...]) -> Reading[None]:
        """Read what follows a tag of calls within the reasoning. It is calls if nothing but whole
        calls comes up to the end of the output: a model that goes on, or closes the reasoning, has
        only thought of them."""
        source = self._source
        trial = OutputParser(
            replace(self._options, reasoning=None, in_reasoning=False, one_call=False)
        )
        held = [source.take(len(tag))]
        events = trial.feed(tag)
        has_failed = False
        while not has_failed:
            found = yield from source.read_until((closes, *opens))
            held.append(found.text)
            new = trial.feed(found.text)
            has_failed = found.tag == closes or any(isinstance(e, ContentDelta) for e in new)
            if not has_failed and found.tag is not None:
                held.append(source.take(len(found.tag)))
                new += trial.feed(found.tag)
            events += new
            if not (has_failed or found.text or (yield from source.wait())):
                events += trial.end()
                break
        if has_failed or not are_whole_calls(events):
            self._reasoning.add("".join(held))
        else:
            self._reasoning.meet_tag()
            self._writer.take_over(events)

    def _read_first_section(self) -> Reading[None]:
        """Read calls without a tag, or after one that is none further on: they may only stand where
        there is no content yet."""
        form = self._format
        if form is None or not (form.bare or form.first_opens) or not self._content.is_blank:
            return
        while (char := (yield from self._source.peek())) and char in SPACE:
            self._content.add(self._source.take(1))
        reasoning = self._options.reasoning
        if reasoning is not None and (yield from self._source.comes(reasoning.opens)):
            return
        if char and char in form.bare:
            yield from self._read_section("")
        for tag in form.first_opens:
            if self._content.is_blank and (yield from self._source.comes(tag)):
                yield from self._read_section(tag)

    def _read_section(self, tag: str) -> Reading[None]:
        """Read the calls after a tag. What is no call any more is left unread; where there was
        none, the tag is content."""
        assert self._format is not None
        num_begun = self._writer.num_begun
        self._source.mark()
        self._source.take(len(tag))
        self._is_opened = tag in self._format.opens and not self._options.is_enforced
        try:
            yield from self._read_calls(self._format)
        except NotACall:
            self._source.rewind()
            self._writer.in_call = False
            if self._writer.num_begun > num_begun:
                self._owed = self._format.closes or None
        if not tag:
            self._owed = None
        self._is_opened = False
        self._source.unmark()
        if self._writer.num_begun == num_begun:
            self._content.add(self._source.take(len(tag) or 1))

    def _read_calls(self, form: ToolFormat) -> Reading[None]:
        source = self._source
        yield from source.skip_space()
        is_listed = form.is_list and (yield from source.accept("["))
        separator = "," if is_listed else form.separator
        while True:
            yield from source.skip_space()
            if not (yield from source.accept(form.call_open)):
                raise NotACall
            yield from self._read_call(form)
            yield from self._skip(*form.tails)
            if not (separator and (yield from source.accept(separator))) and not (
                form.call_open and (yield from source.comes(form.call_open))
            ):
                break
        if is_listed:
            yield from self._skip("]")
        has_close = not form.closes or (yield from source.accept(form.closes))
        self._owed = None if has_close else form.closes
        self._content.meet_tag()

    def _skip(self, *tags: str) -> Reading[None]:
        """Read each of these tags that comes, and the white space around."""
        yield from self._source.skip_space()
        for tag in tags:
            yield from self._source.accept(tag)
            yield from self._source.skip_space()
        self._source.mark()

    def _read_call(self, form: ToolFormat) -> Reading[None]:
        syntax = form.syntax[0]
        yield from self._source.skip_space()
        if len(form.syntax) > 1 and (yield from self._source.peek()) != "{":
            syntax = form.syntax[1]
        if isinstance(syntax, JsonCall):
            yield from read_json_call(syntax, self._writer)
        elif isinstance(syntax, HeadedCall):
            yield from read_headed_call(syntax, self._writer)
        elif isinstance(syntax, TaggedCall):
            yield from read_tagged_call(syntax, form.closes, self._writer)
        else:
            yield from read_python_call(self._writer)
