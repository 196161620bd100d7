"""Grammars of outputs that call tools, in the format of a model.

A text that the parser of calls would read as a call is one, with arguments of its tool's schema.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quire.server.errors import RequestError
from quire.server.grammars.compose import ANY_TEXT, literal
from quire.server.grammars.json_values import TEMPLATE
from quire.server.grammars.python_arguments import python_arguments
from quire.server.grammars.rules import GAP, Rules
from quire.server.grammars.tagged_arguments import tagged_arguments
from quire.server.grammars.tool_schemas import CallableTool, json_arguments, properties_of
from quire.server.parsers.formats import (
    CallSyntax,
    HeadedCall,
    JsonCall,
    TaggedCall,
    ToolFormat,
)
from quire.server.parsers.markup import MAX_NAME_CHARS

_SPACE = r"[ \t\r\n]"
_NUMBER = "/[0-9]{1,4}/"
_WORD = re.compile(r"[^\W\d][\w.-]*")


class ToolUse(NamedTuple):
    """The tools that an output may call.

    is_required: the output is calls alone, at least one; else it may hold text.
    parallel: there may be more than one call.
    any_whitespace: JSON in arguments may have white space between its parts; else it has what
        templates write.
    """

    tools: Sequence[CallableTool]
    is_required: bool
    parallel: bool
    any_whitespace: bool = True


def tool_calls(form: ToolFormat, use: ToolUse, special_tokens: Mapping[str, int]) -> str:
    """Return Lark with the rule `body`, for outputs that call tools. Raises RequestError for a tool
    that cannot be called in this format."""
    for tool in use.tools:
        _check_names(form, tool)
    rules = Rules(special_tokens, None if use.any_whitespace else TEMPLATE)
    section = _section(form, use, rules)
    if use.is_required:
        body = _calls_alone(form, use, section, rules)
    elif form.bare:
        body = _text_or_calls(form, section, rules)
    else:
        body = _text_with_calls(form, use, section, rules)
    return f"body: {body}\n{rules.text}"


def _calls_alone(form: ToolFormat, use: ToolUse, section: str, rules: Rules) -> str:
    opening = _special_opens(form, rules) if form.bare else rules.written(form.opens[0], *form.tags)
    if form.bare:
        return f"({opening})? {section}" if opening else section
    one = rules.add(f"{opening} {section}")
    return f"{one} ({GAP} {one})*" if use.parallel and not form.ends_output else one


def _special_opens(form: ToolFormat, rules: Rules) -> str:
    specials = (rules.written(each, each) for each in form.opens if rules.is_special(each))
    return " | ".join(specials)


def _text_with_calls(form: ToolFormat, use: ToolUse, section: str, rules: Rules) -> str:
    """Return Lark for text in which a tag opens a section, whether its tokens are special or not:
    the parser does not tell these apart."""
    opening = rules.add(_opening(ANY_TEXT, form, rules))
    last = rules.add_terminal(ANY_TEXT)
    return f"({opening} {section})* {last}" if use.parallel else f"{opening} {section} | {last}"


def _opening(text: str, form: ToolFormat, rules: Rules) -> str:
    tags = " | ".join(map(literal, form.opens))
    spelled = rules.add_lazy(f"{text} ({tags})")
    specials = _special_opens(form, rules)
    return f"{spelled} | {rules.add_terminal(text)} ({specials})" if specials else spelled


def _text_or_calls(form: ToolFormat, section: str, rules: Rules) -> str:
    """Return Lark for text that does not begin as calls do, or for calls, with text before them
    where a tag opens them. Calls end the output: the parser might read more in what follows."""
    tags = f"(({_any_of(form.first_opens)}){_SPACE}*)?" if form.first_opens else ""
    begun = f"/{_SPACE}*{tags}[{re.escape(form.bare)}](?s:.*)/"
    text = f"({ANY_TEXT} & ~{begun})"
    space = rules.add_terminal(f"/{_SPACE}*/")
    ways = [rules.add_terminal(text), f"{space} {section}"]
    if form.opens:
        ways.append(f"({rules.add(_opening(text, form, rules))}) {section}")
    if form.first_opens:
        # One terminal, as long as the text that might go on from the tag: both are then possible.
        fence = rules.add_terminal(f"/{_SPACE}*({_any_of(form.first_opens)}){_SPACE}*/")
        ways.append(f"{fence} {section} {space} {literal(form.closes)}")
    return " | ".join(ways)


def _any_of(tags: Sequence[str]) -> str:
    return "|".join(map(re.escape, tags))


def _section(form: ToolFormat, use: ToolUse, rules: Rules) -> str:
    """Return the name of the rule of a section, without the tag that opens it."""
    ways = [_calls(syntax, form, use, rules) for syntax in form.syntax]
    calls = f"({' | '.join(ways)})"
    close = "" if form.ends_output else form.closes or "".join(form.tails if form.bare else ())
    if not close:
        return rules.add(calls)
    end = f"{GAP} {rules.written(close, close)}"
    if form.bare:
        end = f"({end})?" if rules.is_special(close) else ""
    return rules.add(f"{'' if form.bare else GAP} {calls} {end}")


def _calls(syntax: CallSyntax, form: ToolFormat, use: ToolUse, rules: Rules) -> str:
    """Return Lark for the calls of a section that are written in one syntax."""
    calls = " | ".join(_call(syntax, tool, rules) for tool in use.tools)
    call = rules.add(f"({calls})")
    if form.call_open:
        tails = "" if form.bare else " ".join(f"{GAP} {rules.written(t, t)}" for t in form.tails)
        call = rules.add(f"{rules.written(form.call_open, form.call_open)} {call} {tails}")
    in_brackets = form.writes_list and not isinstance(syntax, HeadedCall)
    separator = literal(", ") if in_brackets else ""
    if form.separator:
        separator = literal(f"{form.separator} ")
    elif form.call_open:
        separator = GAP
    more = f"({separator} {call})*" if use.parallel and separator else ""
    return f'"[" {call} {more} "]"' if in_brackets else f"{call} {more}"


def _call(syntax: CallSyntax, tool: CallableTool, rules: Rules) -> str:
    name = tool.name
    if isinstance(syntax, JsonCall):
        head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{syntax.arguments[0]}": '
        return f'{literal(head)} {json_arguments(tool, rules.separators)} "}}"'
    if isinstance(syntax, HeadedCall):
        return f"{_head(syntax, name, rules)} {json_arguments(tool, rules.separators)}"
    if isinstance(syntax, TaggedCall):
        close = f"{rules.written(syntax.close, syntax.close)}" if syntax.close else ""
        arguments = tagged_arguments(syntax, tool, rules)
        return f"{literal(name + syntax.name_close)} {GAP} {arguments} {close}"
    return f'{literal(f"{name}(")} {python_arguments(tool, rules)} ")"'


def _head(syntax: HeadedCall, name: str, rules: Rules) -> str:
    before, number, after = syntax.written.partition("{number}")
    parts = [rules.written(before.replace("{name}", name), *syntax.tags)]
    if number:
        parts += [_NUMBER, rules.written(after, *syntax.tags)]
    return " ".join(parts)


def _check_names(form: ToolFormat, tool: CallableTool) -> None:
    """Raise RequestError for a tool or a parameter whose name the format has no way to write."""
    for syntax in form.syntax:
        if not _can_name(syntax, tool.name):
            raise _unwritable(tool.name, f"{tool.field}.name")
        if isinstance(syntax, JsonCall | HeadedCall) or tool.is_free:
            continue
        for each in properties_of(tool):
            if not _can_name_parameter(syntax, each.name):
                raise _unwritable(each.name, each.path)


def _can_name(syntax: CallSyntax, name: str) -> bool:
    if isinstance(syntax, JsonCall):
        return True
    if isinstance(syntax, HeadedCall):
        written = syntax.written.replace("{name}", name).replace("{number}", "0")
        match = re.fullmatch(syntax.head, written)
        return "{" not in written and match is not None and match["name"].strip() == name
    if isinstance(syntax, TaggedCall):
        return name == name.strip() and not set(name) & set(syntax.name_stops)
    return _WORD.fullmatch(name) is not None


def _can_name_parameter(syntax: CallSyntax, name: str) -> bool:
    if isinstance(syntax, TaggedCall):
        return syntax.key_close not in name
    return _WORD.fullmatch(name) is not None and len(name) <= MAX_NAME_CHARS


def _unwritable(name: str, path: str) -> RequestError:
    return RequestError(
        f"Invalid '{path}': calls in the format of this model cannot hold the name {name!r}.",
        param=path,
        code="unsupported_parameter",
    )
