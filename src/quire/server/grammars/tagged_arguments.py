"""Grammars of arguments that stand in tags: strings are text up to the closing tag, other values
are JSON."""

from quire.server.grammars.compose import ANY_TEXT, literal
from quire.server.grammars.rules import GAP, Rules
from quire.server.grammars.source import GrammarKind
from quire.server.grammars.text_values import text_terminal
from quire.server.grammars.tool_schemas import (
    CallableTool,
    Property,
    argument_value,
    properties_of,
)
from quire.server.parsers.formats import TaggedCall

_FREE_KEY = r"/[^<>\n]{1,64}/"


def tagged_arguments(syntax: TaggedCall, tool: CallableTool, rules: Rules) -> str:
    """Return Lark for the parameters of a call, each in its tags. Raises RequestError for a schema
    that values in tags cannot follow."""
    if tool.is_free:
        key = rules.add_terminal(_FREE_KEY)
        value = rules.until(ANY_TEXT, syntax.value_close)
        opens, closes = (rules.written(each, each) for each in (syntax.key_open, syntax.key_close))
        return f"({opens} {key} {closes} {_opening(syntax, rules)} {value} {GAP})*"
    return " ".join(_parameter(syntax, each, tool, rules) for each in properties_of(tool))


def _opening(syntax: TaggedCall, rules: Rules) -> str:
    tag = syntax.value_open
    return f"{GAP} {rules.written(tag, tag)}" if tag else ""


def _parameter(syntax: TaggedCall, given: Property, tool: CallableTool, rules: Rules) -> str:
    if given.schema is False:
        return ""
    key = rules.written(
        f"{syntax.key_open}{given.name}{syntax.key_close}", syntax.key_open, syntax.key_close
    )
    value = _value(syntax, given, tool, rules)
    parameter = rules.add(f"{key} {_opening(syntax, rules)} {value} {GAP}")
    return parameter if given.is_required else f"{parameter}?"


def _value(syntax: TaggedCall, given: Property, tool: CallableTool, rules: Rules) -> str:
    """Return Lark for a value and its closing tag."""
    schema, close = given.schema, syntax.value_close
    lark = tool.text_grammar
    if lark is not None and lark.kind is GrammarKind.GRAMMAR:
        # With a line end beside each tag a text may begin and end with one of its own.
        text = rules.add(f"%lark {{\n{lark.text}\n}}")
        return f"GAP {text} GAP {rules.written(close, close)}"
    if isinstance(schema, bool):
        return rules.until(ANY_TEXT, close)
    if schema.get("type") != "string":
        value = argument_value(schema, tool.parameters, rules.separators)
        return f"{GAP} {rules.add(value)} {GAP} {rules.written(close, close)}"
    terminal = text_terminal(schema, given.path)
    if terminal == ANY_TEXT:
        return rules.until(ANY_TEXT, close)
    # One line end beside each tag is no part of a text.
    # The parser takes a closing tag in the text for the end where another tag follows it.
    ended = f"{ANY_TEXT} {literal(close)} /[ \\t\\r\\n]*</ {ANY_TEXT}"
    inner = f"({terminal}) & ~({ended}) & ~(/\\n/ {ANY_TEXT}) & ~({ANY_TEXT} /\\n/)"
    return rules.until(f"/\\n?/ ({inner}) /\\n?/", close)
