"""A grammar that fails never looks like an end: the request ends with the reason `grammar_failed`,
also where the token that failed is its last."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.grammar.grammar_processor import GrammarProcessor, TokenMatcher, forced_tokens
from quire.engine.grammar.grammars import Grammars
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.engine.toy_engine import Shape, World
from tests.profiles import cases

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")

NUM_TOKENS = 8
EOS = 5
STOPPING = Stopping(NUM_TOKENS, eos_token_ids=(EOS,))
PLAIN = Shape(4, 30, 2, 16, caches_prefixes=False, watermark=0.0, late=False)


class Failing:
    """A matcher that any token is of, until after `num_taken` of them it fails, as llguidance's
    does: it is then in error and stopped."""

    def __init__(self, num_taken: int, *, forces: bool) -> None:
        self._num_left = num_taken
        self._forces = forces

    def consume_token(self, sampled_token: int) -> bool:
        self._num_left -= 1
        return not self.is_error()

    def compute_bitmask(self) -> bytes:
        return bytes([0b11011111, 255, 255, 255])

    def compute_ff_tokens(self) -> list[int]:
        return [7] * NUM_TOKENS if self._forces and not self.is_error() else []

    def validate_tokens(self, tokens: list[int]) -> int:
        return len(tokens)

    def is_stopped(self) -> bool:
        return self.is_error()

    def is_error(self) -> bool:
        return self._num_left < 0

    def get_error(self) -> str:
        return "too complex" if self.is_error() else ""

    def deep_copy(self) -> TokenMatcher:
        return Failing(self._num_left, forces=self._forces)


@cases(40)
@given(st.integers(0, NUM_TOKENS), st.booleans(), st.booleans())
def test_a_matcher_in_error_fails_its_request(num_taken: int, forces: bool, late: bool) -> None:
    grammars = Grammars(lambda text: Failing(num_taken, forces=forces))
    world = World(replace(PLAIN, late=late), grammars=grammars)
    world.add(NewRequest("failing", (1, 2, 3), Sampling(grammar="any"), STOPPING))
    world.add(NewRequest("plain", (1, 2, 3), Sampling(), STOPPING))
    while world.has_work:
        world.step()
    grammars.close()
    finish = world.deltas["failing"][-1].finish
    assert finish is not None
    if num_taken < NUM_TOKENS:
        assert finish.reason is Reason.GRAMMAR_FAILED
        assert [event.reason for event in finish.timeline][-1] is Reason.GRAMMAR_FAILED
        assert len(world.tokens_of("failing")) <= num_taken
    else:
        assert finish.reason is Reason.MAX_TOKENS
    plain = world.deltas["plain"][-1].finish
    assert plain is not None and plain.reason is not Reason.GRAMMAR_FAILED


class Liar:
    """Letters whose tokens are never those of the text that is asked for."""

    bos_token_id = None
    eos_token_id = EOS
    special_token_ids = (EOS,)
    tokens = tuple(bytes([ord("a") + index]) for index in range(24))

    def __call__(self, text: bytes) -> list[int]:
        return [9] * len(text)


def test_tokens_of_other_bytes_are_not_forced_but_fail() -> None:
    """llguidance masks all but the tokens that it is told are those bytes."""
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Liar()), slices=[])
    grammar = llguidance.LLMatcher.grammar_from_regex("abc|abd")

    def compile_grammar(text: str) -> TokenMatcher:
        matcher: TokenMatcher = llguidance.LLMatcher(tokenizer, text, log_level=0)
        return matcher

    matcher = compile_grammar(grammar)
    assert matcher.compute_ff_tokens() == [9, 9] and not forced_tokens(matcher)
    grammars = Grammars(compile_grammar)
    world = World(PLAIN, grammars=grammars)
    world.add(NewRequest("0", (1, 2, 3), Sampling(grammar=grammar), STOPPING))
    while world.has_work:
        world.step()
    grammars.close()
    finish = world.deltas["0"][-1].finish
    assert finish is not None and finish.reason is Reason.GRAMMAR_FAILED
    assert not world.tokens_of("0")


def test_a_token_that_is_not_of_the_grammar_fails_it_for_good() -> None:
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Liar()), slices=[])
    grammar = llguidance.LLMatcher.grammar_from_regex("abc")
    processor = GrammarProcessor(
        llguidance.LLMatcher(tokenizer, grammar, log_level=0), NUM_TOKENS, EOS
    )
    processor.accept(7)
    assert processor.has_failed and processor.decided is None
    processor.accept(0)
    assert processor.has_failed and processor.decided is None
