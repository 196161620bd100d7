"""Grammars over the toy's tokens, which stand for the letters from a on."""

from typing import TYPE_CHECKING

import pytest

from quire.engine.grammar.grammar_processor import GrammarProcessor
from quire.engine.grammar.grammars import Grammars
from quire.engine.sampling.logits_processor import ProcessorContext

if TYPE_CHECKING:
    from llguidance import LLMatcher

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")

EOS_TOKEN_ID = 5
PATTERNS = ("abcde(g|h)ijkl", "(abcdegh|ijklmno){1,3}", "[a-e]{2}xwvut[g-m]*srq", "[a-e]{1,6}")
"""Texts of them have tokens that are forced: all in a row, some, or none."""


class Letters:
    """The toy's tokens in the form that llguidance takes a tokenizer in."""

    bos_token_id = None
    eos_token_id = EOS_TOKEN_ID
    special_token_ids = (EOS_TOKEN_ID,)

    def __init__(self, vocab_size: int) -> None:
        self.tokens = [bytes([ord("a") + index]) for index in range(vocab_size)]

    def __call__(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]


class ToyGrammars:
    """The grammars of PATTERNS, compiled once; all toy engines share them."""

    def __init__(self, vocab_size: int) -> None:
        wrapper = llguidance.TokenizerWrapper(Letters(vocab_size))
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=vocab_size, slices=[])
        self.grammars = Grammars(self._compile)
        self.texts = [str(llguidance.LLMatcher.grammar_from_regex(each)) for each in PATTERNS]
        num_waiting = sum(not self.grammars.hold(text, text) for text in self.texts)
        while num_waiting:
            self.grammars.wait(1.0)
            num_waiting -= len(self.grammars.take_compiled())

    def _compile(self, grammar: str) -> "LLMatcher":
        matcher: LLMatcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        return matcher

    def processor(self, context: ProcessorContext) -> GrammarProcessor | None:
        return self.grammars.build_processor(context)
