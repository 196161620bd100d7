"""Whether a text is of a grammar, as the engine would find it with a tokenizer of single bytes."""

from collections.abc import Mapping

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from quire.engine.grammar.limits import parser_limits

EOS = 256
FIRST_SPECIAL = 257


class _Bytes:
    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self.tokens = [bytes([value]) for value in range(256)] + [b"<eos>"]
        self.tokens += [text.encode() for text in special_tokens]
        self.special_token_ids = [EOS, *special_tokens.values()]
        self.eos_token_id = EOS
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def matcher(grammar: str, specials: tuple[str, ...] = ()) -> LLMatcher:
    """Specials are the tokens from FIRST_SPECIAL on."""
    tokens = {text: FIRST_SPECIAL + index for index, text in enumerate(specials)}
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(tokens)), slices=[])
    made = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    assert not made.is_error(), made.get_error()
    return made


def token_ids(text: str, specials: tuple[str, ...] = ()) -> list[int]:
    for index, special in enumerate(specials):
        before, found, after = text.partition(special)
        if found:
            return [
                *token_ids(before, specials),
                FIRST_SPECIAL + index,
                *token_ids(after, specials),
            ]
    return list(text.encode())


def accepts(grammar: str, text: str, specials: tuple[str, ...] = ()) -> bool:
    """Whether the whole text is of the grammar."""
    made, ids = matcher(grammar, specials), token_ids(text, specials)
    return made.try_consume_tokens(ids) == len(ids) and made.is_accepting()
