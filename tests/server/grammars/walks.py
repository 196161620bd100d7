"""Random outputs of a grammar, drawn with llguidance and the tokenizer of the bundled model."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from quire.engine.grammar.limits import parser_limits
from tests.server.served import BUNDLED

EOS = 0
_ENDS = ("</", "end", "```")
_CLOSERS = ('"', "'", ")", "]", "}", "\n")


@cache
def _tokenizers() -> tuple[Tokenizer, LLTokenizer]:
    text = (Path(BUNDLED) / "tokenizer.json").read_text()
    tokenizer = Tokenizer.from_str(text)
    return tokenizer, LLTokenizer(text, n_vocab=tokenizer.get_vocab_size(), eos_token=[EOS])


def matcher(body: str) -> LLMatcher:
    made = LLMatcher(_tokenizers()[1], f"start: body\n{body}", log_level=0, limits=parser_limits())
    assert not made.is_error(), made.get_error()
    return made


def accepts(body: str, text: str) -> bool:
    """Whether the whole text is of the grammar."""
    made, ids = matcher(body), _tokenizers()[0].encode(text, add_special_tokens=False).ids
    return made.try_consume_tokens(ids) == len(ids) and made.is_accepting()


class Walk:
    """One output: `text` so far, and whether it `has_ended` as the grammar allows.

    words: texts that are tried as well as single tokens, for example tags.
    """

    def __init__(self, body: str, words: Sequence[str], random: Random) -> None:
        self.has_ended = False
        self._matcher = matcher(body)
        self._words = words
        self._random = random
        self._ids: list[int] = []

    @property
    def text(self) -> str:
        return str(_tokenizers()[0].decode(self._ids, skip_special_tokens=False))

    def go(self, num_steps: int) -> "Walk":
        """Take random steps, half of them words if they fit; after half of the steps, those that
        end things come first."""
        for step in range(num_steps):
            is_late = step > num_steps // 2
            if self._end(is_late) or not (self._any(self._choices(is_late)) or self._token()):
                break
        return self

    def _end(self, is_late: bool) -> bool:
        self.has_ended = self._matcher.is_accepting() and (is_late or self._random.random() < 0.2)
        return self.has_ended

    def _choices(self, is_late: bool) -> Iterator[str]:
        if is_late:
            ends = [each for each in self._words if any(mark in each for mark in _ENDS)]
            yield from self._random.sample([*ends, *_CLOSERS], len(ends) + len(_CLOSERS))
        if is_late or self._random.random() < 0.5:
            yield self._random.choice(self._words)

    def _any(self, words: Iterator[str]) -> bool:
        return any(self.take(word) for word in words)

    def take(self, word: str) -> bool:
        """Take a text if it fits here."""
        ids = _tokenizers()[0].encode(word, add_special_tokens=False).ids
        num_taken = self._matcher.try_consume_tokens(ids)
        if num_taken == len(ids):
            self._ids += ids
            return True
        self._matcher.rollback(num_taken)
        return False

    def _token(self) -> bool:
        mask = int.from_bytes(self._matcher.compute_bitmask(), "little")
        allowed = [token for token in range(1, mask.bit_length()) if mask >> token & 1]
        assert allowed or self._matcher.is_accepting(), self._matcher.get_error()
        if not allowed:
            return False
        token = self._random.choice(allowed)
        assert self._matcher.consume_token(token)
        self._ids.append(token)
        return True
