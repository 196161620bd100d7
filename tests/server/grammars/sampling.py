"""What a model of random weights writes under a grammar, and which values are of one."""

import json
from collections.abc import Iterable, Iterator
from random import Random

from quire.server.grammars.answers import answer
from quire.server.grammars.compose import compose
from quire.server.grammars.source import GrammarKind, GrammarSource
from tests.server.grammars.matching import EOS, matcher


def sampled(grammar: str, random: Random, num_tokens: int) -> tuple[bytes, bool]:
    """Return what a model of random weights writes that would rather end, and whether it ended."""
    following, written = matcher(grammar), bytearray()
    for _ in range(num_tokens):
        mask = int.from_bytes(following.compute_bitmask(), "little")
        allowed = [each for each in range(EOS + 1) if mask >> each & 1]
        assert allowed, bytes(written)
        ends = [each for each in allowed if each in (EOS, *b'"}]')]
        token_id = random.choice(ends if ends and random.random() < 0.3 else allowed)
        assert following.consume_token(token_id)
        if token_id == EOS:
            return bytes(written), True
        written.append(token_id)
    return bytes(written), False


def grammar_of(schema: object, *, strict: bool = False) -> tuple[str, tuple[str, ...]]:
    """Return the grammar of answers of a schema, without white space, and what it leaves out."""
    source = GrammarSource(GrammarKind.JSON, json.dumps(schema), "f", strict)
    made = answer(source, any_whitespace=False)
    return compose(made.body, None, prompt="", special_tokens={}), made.loosened


def written(grammar: str, seed: int, num_tokens: int = 300) -> Iterator[object]:
    """Yield what is written under a grammar, if it ends."""
    text, has_ended = sampled(grammar, Random(seed), num_tokens)
    if has_ended:
        yield json.loads(text)


def taken(grammar: str, values: Iterable[object]) -> Iterator[tuple[object, bool]]:
    """Yield the values, and whether each is of the grammar."""
    following = matcher(grammar)
    for value in values:
        ids = list(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
        num_taken = following.try_consume_tokens(ids)
        yield value, num_taken == len(ids) and following.is_accepting()
        following.reset()
