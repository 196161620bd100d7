"""`allowed_token_ids` and `bad_words`: checked against other fields, and words made to tokens."""

from collections.abc import Iterable, Iterator

from quire.server.errors import RequestError
from quire.server.generation.input import OutputOptions
from quire.server.grammars.compose import Grammar
from quire.server.models.input_context import InputContext
from quire.server.text.tokenizer import TextTokenizer

MAX_BAD_WORD_TOKENS = 1024
"""Tokens of all bad words of a request, with and without a blank before them."""


def bad_word_tokens(
    options: OutputOptions, grammar: Grammar | None, context: InputContext
) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences of a request's bad words, each once. Raises RequestError, also
    where the fields that keep tokens away do not go with others.

    grammar: what the outputs must be of, if anything.
    """
    if not (options.allowed_token_ids or options.bad_words):
        return ()
    _check_other_fields(options, grammar)
    _check_some_token_goes_on(options, context)
    found: dict[tuple[int, ...], None] = {}
    num_tokens = 0
    for index, word in enumerate(options.bad_words):
        if not word.strip():
            raise RequestError(
                f"Invalid 'bad_words[{index}]': must hold more than blanks.",
                param=f"bad_words[{index}]",
            )
        for sequence in _sequences(word, context.tokenizer):
            if sequence and sequence not in found:
                found[sequence] = None
                num_tokens += len(sequence)
        if num_tokens > MAX_BAD_WORD_TOKENS:
            raise RequestError(
                f"'bad_words' are more than {MAX_BAD_WORD_TOKENS} tokens, with and without a blank "
                "before each; give fewer.",
                param="bad_words",
            )
    _check_some_token_is_left(found, context)
    return tuple(found)


def _sequences(word: str, tokenizer: TextTokenizer) -> Iterator[tuple[int, ...]]:
    """Yield the tokens of a word at the beginning of a text, and of one after a blank, as vLLM
    does."""
    bare = word.lstrip()
    for text in (bare, f" {bare}"):
        yield tokenizer.encode(text, add_special_tokens=False)


def _check_other_fields(options: OutputOptions, grammar: Grammar | None) -> None:
    given = [
        name
        for name, value in (
            ("allowed_token_ids", options.allowed_token_ids),
            ("bad_words", options.bad_words),
        )
        if value
    ]
    if len(given) == 2:
        raise RequestError(
            "'bad_words' and 'allowed_token_ids' exclude each other: they may leave no token; "
            "leave out of 'allowed_token_ids' what must not come.",
            param="bad_words",
        )
    if given and grammar is not None:
        raise RequestError(
            f"'{given[0]}' does not go with '{grammar.field}': together they may leave no token.",
            param=given[0],
        )


def _check_some_token_goes_on(options: OutputOptions, context: InputContext) -> None:
    """Raise RequestError where an output must not end yet, and may hold only what ends it."""
    allowed, stops = options.allowed_token_ids, options.stop_token_ids
    ends = stops if options.ignore_eos else (*context.facts.eos_token_ids, *stops)
    if allowed and options.min_tokens and set(allowed) <= set(ends):
        raise RequestError(
            f"'min_tokens' is {options.min_tokens}, but every id of 'allowed_token_ids' ends the "
            "output.",
            param="allowed_token_ids",
        )


def _check_some_token_is_left(sequences: Iterable[tuple[int, ...]], context: InputContext) -> None:
    """Raise RequestError where the sequences may ban the whole vocabulary at some point."""
    lasts = {sequence[-1] for sequence in sequences}
    if lasts and len(lasts | set(context.facts.eos_token_ids)) >= context.facts.vocab_size:
        raise RequestError("'bad_words' leave no token of the vocabulary.", param="bad_words")
