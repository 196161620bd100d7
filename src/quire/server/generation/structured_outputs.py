"""Makes the grammar of a request's outputs, and checks which fields a grammar goes with."""

from quire.engine.messages import EngineFacts
from quire.scheduler.request import ReasoningTags
from quire.server.errors import RequestError
from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.protocol.structured import WHITESPACE_FIELD, StructuredFields
from quire.server.generation.tools.grammars import enforced_field, tool_grammar
from quire.server.grammars.answers import answer
from quire.server.grammars.compose import ANY_TEXT, Grammar, compose, in_channel
from quire.server.grammars.source import GrammarKind, GrammarSource
from quire.server.models.input_context import InputContext
from quire.server.parsers.output_parser import ParserOptions


def check_structured(request: StructuredFields, facts: EngineFacts) -> None:
    """Check what a grammar does not go with. Raises RequestError."""
    sources = request.grammar_sources
    enforced = enforced_field(request) if isinstance(request, ChatRequest) else None
    field = sources[0].field if sources else enforced
    _check_whitespace(request, has_tools=enforced is not None)
    if field is None:
        return
    if len(sources) > 1:
        raise RequestError(
            f"'{field}' and '{sources[1].field}' both say what the output must be of; give one of "
            "them.",
            param=sources[1].field,
        )
    excluded = {
        "ignore_eos": bool(request.ignore_eos),
        "min_tokens": bool(request.min_tokens),
        "max_tokens": request.max_tokens == 0,
    }
    wrong = next((name for name, is_given in excluded.items() if is_given), None)
    if wrong is not None:
        raise RequestError(f"'{wrong}' {_WHY_NOT[wrong]} with '{field}'.", param=wrong)
    if not facts.eos_token_ids:
        raise RequestError(f"'{field}' needs a model with an end-of-sequence token.", param=field)


def _check_whitespace(request: StructuredFields, *, has_tools: bool) -> None:
    """Raise RequestError where the request says which white space JSON has, and asks for none."""
    has_json = any(source.kind is GrammarKind.JSON for source in request.grammar_sources)
    if request.disable_any_whitespace is None or has_json or has_tools:
        return
    if request.disable_any_whitespace or not request.grammar_sources:
        raise RequestError(
            f"'{WHITESPACE_FIELD}' goes with JSON alone: that of 'json', 'json_object', "
            "'response_format' or 'guided_json', or of tools that must be called as their schemas "
            "say.",
            param=WHITESPACE_FIELD,
        )


_WHY_NOT = {
    "ignore_eos": "cannot be true, since the grammar says where the output ends,",
    "min_tokens": "cannot be given, since the grammar says where the output may end,",
    "max_tokens": "cannot be 0",
}


def output_grammar(
    request: StructuredFields, parsing: ParserOptions, prompt: str, context: InputContext
) -> Grammar | None:
    """Return the grammar of a request's outputs, None where they may be anything. Raises
    RequestError.

    prompt: the text that the outputs go on with, as far as it says where reasoning stands.
    """
    bodies = _bodies(request, parsing, context)
    if not bodies:
        return None
    made = bodies[0] if len(bodies) == 1 else _either(*bodies)
    specials = context.tokenizer.special_tokens
    text = compose(made.text, parsing.reasoning, prompt=prompt, special_tokens=specials)
    return made._replace(text=text, reasoning_tags=_reasoning_tags(request, parsing))


def _reasoning_tags(request: StructuredFields, parsing: ParserOptions) -> ReasoningTags | None:
    """Return the tags of the reasoning before an answer. There are none where the answer may begin
    with the opening tag, as a text or an expression of the client's may."""
    reasoning, sources = parsing.reasoning, request.grammar_sources
    if reasoning is None or parsing.is_thought_out:
        return None
    if parsing.in_reasoning:
        return ReasoningTags("", reasoning.closes)
    is_json = bool(sources) and all(source.kind is GrammarKind.JSON for source in sources)
    is_told = parsing.has_calls_alone or is_json
    return ReasoningTags(reasoning.opens, reasoning.closes) if is_told else None


def _bodies(
    request: StructuredFields, parsing: ParserOptions, context: InputContext
) -> list[Grammar]:
    """Return the rules `body` of the answer and of the calls that the client asks for."""
    disabled = request.disable_any_whitespace
    any_whitespace = not (context.limits.disables_whitespace if disabled is None else disabled)
    answers = [_answer(source, any_whitespace) for source in request.grammar_sources]
    calls = (
        tool_grammar(request, context, any_whitespace=any_whitespace)
        if isinstance(request, ChatRequest)
        else None
    )
    if calls is not None and isinstance(request, ChatRequest) and request.requires_calls:
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
