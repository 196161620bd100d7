"""Makes the grammar of a request's outputs."""

from quire.scheduler.request import ReasoningTags
from quire.server.generation.input import ChatInput, Input
from quire.server.generation.tools.grammars import tool_grammar
from quire.server.grammars.answers import answer
from quire.server.grammars.compose import ANY_TEXT, Grammar, compose, in_channel
from quire.server.grammars.source import GrammarKind, GrammarSource
from quire.server.models.input_context import InputContext
from quire.server.parsers.output_parser import ParserOptions


def output_grammar(
    given: Input, parsing: ParserOptions, prompt: str, context: InputContext
) -> Grammar | None:
    """Return the grammar of a request's outputs, None where they may be anything. Raises
    RequestError.

    prompt: the text that the outputs go on with, as far as it says where reasoning stands.
    """
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
    answers = [] if source is None else [_answer(source, any_whitespace)]
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
    body, warnings = answer(source, any_whitespace=any_whitespace)
    return Grammar(body, source.kind, source.field, warnings)


def _either(calls: Grammar, answers: Grammar) -> Grammar:
    """Return the rule `body` of calls alone or of an answer."""
    rules = (calls.text.replace("body:", "calls:", 1), answers.text.replace("body:", "answer:", 1))
    return answers._replace(
        text="\n".join(("body: calls | answer", *rules)),
        warnings=calls.warnings + answers.warnings,
        parts=(*calls.parts, answers._replace(text=f"start: body\n{answers.text}")),
    )
