"""The form of outputs: the parts that they are parsed for, and the grammar that they must be of."""

import json
from collections.abc import Sequence

from quire.scheduler.request import ReasoningTags
from quire.server.errors import RequestError
from quire.server.generation.checks import call_format, enforced_path
from quire.server.generation.input import ChatInput, Input
from quire.server.grammars.answers import answer
from quire.server.grammars.compose import ANY_TEXT, Grammar, SchemaPromise, compose, in_channel
from quire.server.grammars.enforced_tools import EnforcedTool, enforced_tool
from quire.server.grammars.source import GrammarKind, GrammarSource
from quire.server.grammars.tool_calls import ToolUse, tool_calls
from quire.server.grammars.tool_schemas import CallableTool
from quire.server.models.input_context import InputContext
from quire.server.parsers.formats import ToolFormat
from quire.server.parsers.output_parser import ParserOptions

MAX_GRAMMAR_BYTES = 512 * 1024
"""The schemas of all tools, as the grammar holds them."""
KIND = "tools"


def parser_options(chat: ChatInput, prompt: str, context: InputContext) -> ParserOptions:
    """Return how the outputs of a request are parsed; `prompt` is its text."""
    reasoning, shown = context.limits.reasoning_format, prompt.rstrip()
    form = call_format(chat, context) if chat.offered_tools else None
    holds_calls = form is not None and enforced_path(chat) is not None
    return ParserOptions(
        tool_format=form,
        tools={tool.name: tool.parameters or {} for tool in chat.callable_tools},
        one_call=chat.takes_one_call,
        reasoning=reasoning,
        in_reasoning=reasoning is not None and shown.endswith(reasoning.opens),
        is_enforced=chat.options.grammar is not None
        or (form is not None and holds_calls and has_calls_alone(chat, form)),
        has_calls_alone=form is not None and chat.requires_calls,
        is_thought_out=reasoning is not None and shown.endswith(reasoning.closes),
    )


def output_grammar(
    given: Input, parsing: ParserOptions, prompt: str, context: InputContext
) -> Grammar | None:
    """Return the grammar of a request's outputs, None where they may be anything. Raises
    RequestError.

    prompt: the text that the outputs go on with, as far as it says where reasoning stands.
    """
    made = _whole(given, parsing, prompt, context)
    if made is None or context.coarse_grammars or not _holds_schema(given):
        return made
    return made._replace(has_coarse_form=any(each in made.text for each in _HARD))


_HARD = ('"allOf"', '"$ref"')
"""Keywords in schemas that a grammar may fail to hold."""


def _holds_schema(given: Input) -> bool:
    source = given.options.grammar
    return isinstance(given, ChatInput) or (source is not None and source.kind is GrammarKind.JSON)


def _whole(
    given: Input,
    parsing: ParserOptions,
    prompt: str,
    context: InputContext,
) -> Grammar | None:
    bodies = _bodies(given, parsing, context)
    if not bodies:
        return None
    made = bodies[0] if len(bodies) == 1 else _either(*bodies)
    specials = context.tokenizer.special_tokens
    text = compose(made.text, parsing.reasoning, prompt=prompt, special_tokens=specials)
    return made._replace(text=text, reasoning_tags=_reasoning_tags(given, parsing))


def _reasoning_tags(given: Input, parsing: ParserOptions) -> ReasoningTags | None:
    """Return the tags of the reasoning before an answer. There are none where the answer may begin
    with the opening tag, as a text or an expression of the client's may."""
    reasoning, source = parsing.reasoning, given.options.grammar
    if reasoning is None or parsing.is_thought_out:
        return None
    if parsing.in_reasoning:
        return ReasoningTags("", reasoning.closes)
    is_json = source is not None and source.kind is GrammarKind.JSON
    is_told = parsing.has_calls_alone or is_json
    return ReasoningTags(reasoning.opens, reasoning.closes) if is_told else None


def _bodies(given: Input, parsing: ParserOptions, context: InputContext) -> list[Grammar]:
    """Return the rules `body` of the answer and of the calls that the client asks for."""
    disabled, source = given.options.disable_any_whitespace, given.options.grammar
    any_whitespace = not (context.limits.disables_whitespace if disabled is None else disabled)
    answers = []
    if source is not None:
        answers = [_answer(source._replace(coarse=context.coarse_grammars), any_whitespace)]
    calls = None
    if isinstance(given, ChatInput):
        calls = tool_grammar(given, context, any_whitespace=any_whitespace)
        if calls is not None and given.requires_calls:
            # No answer comes beside calls that must be made, whatever it would have to be of.
            return [calls]
    form = parsing.tool_format
    if calls is not None and not answers and form is not None and form.ends_output:
        answers = [Grammar(f"body: {ANY_TEXT}", calls.kind, calls.field)]
    if parsing.reasoning is not None:
        specials = context.tokenizer.special_tokens
        answers = [in_channel(answer, parsing.reasoning, specials) for answer in answers]
    return answers if calls is None else [calls, *answers]


def _answer(source: GrammarSource, any_whitespace: bool) -> Grammar:
    body, warnings, loosened = answer(source, any_whitespace=any_whitespace)
    promises = (SchemaPromise(source.text),) if loosened else ()
    return Grammar(body, source.kind, source.field, warnings, loosened=loosened, promises=promises)


def _either(calls: Grammar, answers: Grammar) -> Grammar:
    """Return the rule `body` of calls alone or of an answer."""
    rules = (calls.text.replace("body:", "calls:", 1), answers.text.replace("body:", "answer:", 1))
    return answers._replace(
        text="\n".join(("body: calls | answer", *rules)),
        warnings=calls.warnings + answers.warnings,
        loosened=calls.loosened + answers.loosened,
        promises=calls.promises + answers.promises,
        parts=(*calls.parts, answers._replace(text=f"start: body\n{answers.text}")),
    )


def tool_grammar(chat: ChatInput, context: InputContext, *, any_whitespace: bool) -> Grammar | None:
    """Return the rule `body` of outputs that may call tools, None where that is not enforced.
    Beside an answer that must be of something, or that is another message, the output is calls
    alone. Raises RequestError."""
    form, field = call_format(chat, context), enforced_path(chat)
    if not chat.offered_tools or form is None or not (field or chat.options.grammar):
        return None
    offered = (tool._replace(is_coarse=context.coarse_grammars) for tool in _callable_tools(chat))
    made = [enforced_tool(tool, form) for tool in offered]
    tools = [each.tool for each in made]
    specials = context.tokenizer.special_tokens
    is_alone = has_calls_alone(chat, form)
    use = ToolUse(tools, is_alone, not chat.takes_one_call, any_whitespace)
    text = tool_calls(form, use, specials)
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise RequestError(
            f"The grammar of the tools has {len(text.encode())} bytes, at most "
            f"{MAX_GRAMMAR_BYTES} are allowed: offer fewer tools.",
            param=chat.path("tools"),
        )
    alone = use._replace(is_required=True, parallel=False)
    parts = (
        Grammar(
            f"start: body\n{tool_calls(form, alone._replace(tools=[tool]), specials)}",
            KIND if tool.text_grammar is None else tool.text_grammar.kind,
            tool.path if tool.text_grammar is None else tool.text_grammar.field,
        )
        for tool in tools
    )
    return Grammar(
        text,
        KIND,
        field or chat.path("tools"),
        tuple(warning for each in made for warning in each.warnings),
        tuple(parts),
        loosened=tuple(path for each in made for path in each.loosened),
        promises=_promises(chat, made),
    )


def _promises(chat: ChatInput, made: Sequence[EnforcedTool]) -> tuple[SchemaPromise, ...]:
    """Return the schemas of those tools whose calls are not held to all of them."""
    given = {tool.name: tool.parameters or {} for tool in chat.callable_tools}
    return tuple(
        SchemaPromise(json.dumps(given[each.tool.name]), each.tool.name)
        for each in made
        if each.loosened
    )


def has_calls_alone(chat: ChatInput, form: ToolFormat) -> bool:
    """Return whether enforced calls have no text beside them in an output."""
    return chat.requires_calls or chat.options.grammar is not None or form.ends_output


def _callable_tools(chat: ChatInput) -> list[CallableTool]:
    return [
        CallableTool(
            tool.name,
            tool.parameters or {},
            tool.path,
            tool.schema_path,
            is_free=not (chat.requires_calls or tool.strict),
            is_strict=tool.strict,
            text_grammar=tool.text_grammar,
        )
        for tool in chat.callable_tools
    ]
