"""Makes the grammar of a request's outputs, and checks which fields a grammar goes with."""

from quire.engine.messages import EngineFacts
from quire.server.errors import RequestError
from quire.server.grammars.answers import answer
from quire.server.grammars.check import Vocabulary
from quire.server.grammars.compose import Grammar, compose
from quire.server.openai.protocol.chat import ChatRequest
from quire.server.openai.protocol.structured import StructuredFields
from quire.server.parsers.output_parser import ParserOptions
from quire.server.requests.input_context import InputContext


def check_structured(request: StructuredFields, facts: EngineFacts) -> None:
    """Check what a grammar does not go with. Raises RequestError."""
    sources = request.grammar_sources
    if not sources:
        return
    field = sources[0].field
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
        "tools": isinstance(request, ChatRequest) and bool(request.offered_tools),
    }
    wrong = next((name for name, is_given in excluded.items() if is_given), None)
    if wrong is not None:
        raise RequestError(f"'{wrong}' {_WHY_NOT[wrong]} with '{field}'.", param=wrong)
    if not facts.eos_token_ids:
        raise RequestError(f"'{field}' needs a model with an end-of-sequence token.", param=field)


_WHY_NOT = {
    "ignore_eos": "cannot be true, since the grammar says where the output ends,",
    "min_tokens": "cannot be given, since the grammar says where the output may end,",
    "max_tokens": "cannot be 0",
    "tools": "cannot be offered, unless 'tool_choice' is 'none',",
}


def output_grammar(
    request: StructuredFields, parsing: ParserOptions, prompt: str, context: InputContext
) -> Grammar | None:
    """Return the grammar of a request's outputs, None where they may be anything. Raises
    RequestError.

    prompt: the text that the outputs go on with, as far as it says where reasoning stands.
    """
    if not request.grammar_sources:
        return None
    source = request.grammar_sources[0]
    body, warnings = answer(source)
    text = compose(
        body,
        parsing.reasoning,
        prompt=prompt,
        special_tokens=context.tokenizer.special_tokens,
    )
    return Grammar(text, source.kind, source.field, warnings)


def vocabulary_of(context: InputContext) -> Vocabulary:
    """Return what a grammar may name of the model's vocabulary."""
    facts = context.facts
    specials = tuple(context.tokenizer.special_tokens.items())
    known = tuple(each for each in specials if each[1] < facts.vocab_size)
    return Vocabulary(facts.vocab_size, known, facts.eos_token_ids)
