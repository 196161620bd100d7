"""Checks whether the engine can compile a grammar, and whether anything is of it.

A check takes up to some hundred milliseconds, nearly all without the interpreter's lock. It uses a
tokenizer of single bytes and the model's special tokens: what a grammar costs with the model's own
tokens, the engine's limits bound.
"""

import re
import signal
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from quire.engine.grammar.limits import parser_limits
from quire.engine.messages import EngineFacts
from quire.server.errors import RequestError
from quire.server.grammars.compose import Grammar
from quire.server.grammars.source import GrammarKind
from quire.server.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_SHOWN_CHARS = 300
MAX_CHECK_CPU_S = 1.0
"""CPU seconds that the check of a grammar may take in a process of its own."""
MAX_WRITTEN_OUT = 8_000_000
"""Bytes of which a check takes 0.2 s."""
MAX_COUNTED = 100
KEPT_TOKENIZERS = 8
"""Tokenizers of so many models are kept."""
_PREFIXES = re.compile(r"^(at \d+\(\d+\): )?(failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"\n +\d+ \| .*", re.DOTALL)
_MARKED_LINE = re.compile(r"\n +\d+ \| (.*)\n +\^\n")
_REGEX_ERROR = re.compile(r"regex parse error:.*\nerror: ", re.DOTALL)
_OPTION = re.compile(r" Enable 'coerce_one_of'.*")
_STATE = re.compile(r"\s*<(non-verbose|state).*", re.DOTALL)


class SpecialTokens(NamedTuple):
    """The part of a model's vocabulary that grammars name: special tokens by their text."""

    size: int
    special_tokens: tuple[tuple[str, int], ...]
    eos_token_ids: tuple[int, ...]


def check_grammar(grammar: Grammar, vocabulary: SpecialTokens) -> None:
    """Raise RequestError for a grammar that cannot be compiled, is too large, or that nothing is
    of. It names the part at fault."""
    fault = _fault(grammar, vocabulary)
    if fault is None:
        return
    for part in grammar.parts:
        of_part = _fault(part, vocabulary)
        if of_part is not None:
            raise _invalid(part, of_part)
    raise _invalid(grammar, fault)


def _fault(grammar: Grammar, vocabulary: SpecialTokens) -> str | None:
    from llguidance import LLMatcher  # late: most servers have no grammars

    matcher = LLMatcher(_tokenizer(vocabulary), grammar.text, log_level=0, limits=parser_limits())
    if matcher.is_error():
        return _shown(matcher.get_error(), grammar.kind)
    is_dead = not any(matcher.compute_bitmask())
    return "nothing is valid" if is_dead or matcher.is_error() else None


def may_explode(grammar: Grammar) -> bool:
    """Return whether references may make a grammar far larger than its text: llguidance writes out
    those with other keywords beside them, and no limit of its own ends that. With n references a
    part is written out 3^(n/3) times at most. What a client wrote in Lark may hold schemas that
    nobody has looked into."""
    if grammar.kind == GrammarKind.GRAMMAR and "%json" in grammar.text:
        return True
    num_references = min(grammar.text.count('"$ref"'), MAX_COUNTED)
    return len(grammar.text) * 3 ** (num_references / 3) > MAX_WRITTEN_OUT


def check_within(grammar: Grammar, vocabulary: SpecialTokens, max_cpu_s: float) -> None:
    """Check a grammar in a process of its own, which ends where the check takes more than
    `max_cpu_s`. Raises RequestError."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, max_cpu_s)
    try:
        check_grammar(grammar, vocabulary)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def takes_too_long(grammar: Grammar, max_cpu_s: float) -> RequestError:
    """Return the error for a grammar whose check was ended after `max_cpu_s`."""
    return _invalid(
        grammar,
        f"takes more than {max_cpu_s:g} s to compile; '$ref' with other keywords beside it, or in "
        "'allOf', is written out wherever it stands, and a large 'multipleOf' takes long",
    )


def prepare_check(vocabulary: SpecialTokens) -> None:
    """Build the tokenizer of the checks, which at 152,000 tokens holds the interpreter's lock for
    50 ms."""
    _tokenizer(vocabulary)


def _invalid(grammar: Grammar, why: str) -> RequestError:
    return RequestError(f"Invalid '{grammar.field}': {why}.", param=grammar.field)


def _shown(error: str, kind: str) -> str:
    """Return an error of llguidance without the text of the grammar, but for the line at fault of
    one that the client wrote, and without the state of its parser."""
    line = _MARKED_LINE.search(error) if kind == GrammarKind.GRAMMAR else None
    why = _EXCERPT.sub("", _STATE.sub("", error))
    why = _REGEX_ERROR.sub("regular expression: ", _PREFIXES.sub("", why))
    shown = _OPTION.sub("", " ".join(why.split()))[:MAX_SHOWN_CHARS].rstrip(".")
    return shown if line is None else f"{shown}, in {line[1][:MAX_SHOWN_CHARS]!r}"


class _ByteTokens:
    """The special tokens of a model, whose other tokens are empty, and after them those of single
    bytes: a tokenizer as llguidance wants to be given it."""

    def __init__(self, vocabulary: SpecialTokens) -> None:
        specials = dict(vocabulary.special_tokens)
        self.tokens = [b""] * vocabulary.size
        for text, token_id in specials.items():
            self.tokens[token_id] = text.encode()
        self.tokens += [bytes([value]) for value in range(256)]
        self.special_token_ids: Sequence[int] = tuple(specials.values())
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id = None
        self._first_byte = vocabulary.size

    def __call__(self, text: bytes) -> list[int]:
        return [self._first_byte + value for value in text]


@lru_cache(maxsize=KEPT_TOKENIZERS)
def _tokenizer(vocabulary: SpecialTokens) -> "LLTokenizer":
    from llguidance import LLTokenizer, TokenizerWrapper

    wrapper = TokenizerWrapper(_ByteTokens(vocabulary))
    return LLTokenizer(wrapper, eos_token=list(vocabulary.eos_token_ids), slices=[])


def vocabulary_of(facts: EngineFacts, tokenizer: TextTokenizer) -> SpecialTokens:
    """Return what a grammar may name of the model's vocabulary."""
    specials = tuple(tokenizer.special_tokens.items())
    known = tuple(each for each in specials if each[1] < facts.vocab_size)
    return SpecialTokens(facts.vocab_size, known, facts.eos_token_ids)
