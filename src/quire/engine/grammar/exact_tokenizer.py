"""The tokenizer of a model in the form that llguidance takes one in.

llguidance reads `tokenizer.json` too, but then every added token that looks like `<...>` is special
to it, and texts are tokenised as a prompt is: special tokens, a space in front and normalised
characters stand for other bytes. Here a token is special if the model's files say so or if it ends
outputs, and tokens are exactly the bytes that they are made from.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from tokenizers import Tokenizer

from quire.engine.grammar.token_bytes import TokenBytes
from quire.engine.grammar.tokenizer_facts import (
    TOKENIZER,
    mark_special_tokens,
    read_facts,
    special_tokens,
)

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class GrammarVocabulary(NamedTuple):
    """The tokens of a model as grammars and limits on reasoning need them: llguidance's tokenizer,
    and the bytes of each token by its id."""

    tokenizer: "LLTokenizer"
    token_bytes: tuple[bytes, ...]


class TokenizerTable(NamedTuple):
    """A tokenizer that takes the text of a special token for text, and puts nothing before a text;
    and the bytes of each of its tokens by its id."""

    tokenizer: Tokenizer
    token_bytes: tuple[bytes, ...]


class ExactTokenizer:
    """Tokenizes bytes with the model's tokenizer if its tokens have exactly these bytes, otherwise
    with the longest matching tokens, or with none if there are none. Special tokens are excluded.

    tokens: the bytes of each token of the model, empty where the tokenizer has no such token.
    """

    bos_token_id = None

    def __init__(
        self, read: TokenizerTable, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        padding = (b"",) * (vocab_size - len(read.token_bytes))
        self.tokens = read.token_bytes[:vocab_size] + padding
        special = {*special_tokens(read.tokenizer).values(), *eos_token_ids}
        self.special_token_ids = tuple(sorted(each for each in special if each < vocab_size))
        self.eos_token_id = eos_token_ids[0]
        self._tokenizer = read.tokenizer
        self._is_special = frozenset(self.special_token_ids)
        self._ids: Mapping[bytes, int] | None = None

    def __call__(self, text: bytes) -> list[int]:
        try:
            found = self._tokenizer.encode(text.decode(), add_special_tokens=False).ids
        except UnicodeDecodeError:
            found = []
        return found if self._are_exactly(found, text) else self._longest(text)

    def _are_exactly(self, token_ids: Iterable[int], text: bytes) -> bool:
        known = [each for each in token_ids if each < len(self.tokens)]
        if not self._is_special.isdisjoint(known):
            return False
        return b"".join(self.tokens[each] for each in known) == text

    def _longest(self, text: bytes) -> list[int]:
        """Return at each byte the longest token, or nothing if that leads nowhere."""
        if self._ids is None:
            known = enumerate(self.tokens)
            self._ids = {text: each for each, text in known if each not in self._is_special}
            self._ids.pop(b"", None)
        longest = max(map(len, self._ids), default=0)
        found, start = [], 0
        while start < len(text):
            ends = range(min(start + longest, len(text)), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                return []
            found.append(self._ids[text[start:end]])
            start = end
        return found


def read_tokenizer(folder: Path) -> TokenizerTable:
    """Read the tokenizer of a model, which at 150,000 tokens takes 0.7 s of one core. Raises
    TokenizerError, or the library's own error."""
    parts = msgspec.json.decode((folder / TOKENIZER).read_bytes(), type=dict[str, msgspec.Raw])
    for name in ("normalizer", "pre_tokenizer"):
        if name in parts:
            part = _without_space(msgspec.json.decode(parts[name]))
            parts[name] = msgspec.Raw(msgspec.json.encode(part))
    for name in ("post_processor", "truncation", "padding"):
        parts[name] = msgspec.Raw(b"null")
    tokenizer = Tokenizer.from_buffer(msgspec.json.encode(parts))
    mark_special_tokens(tokenizer, read_facts(folder))
    tokenizer.encode_special_tokens = True
    token_bytes = TokenBytes(tokenizer)
    num_tokens = max(tokenizer.get_vocab().values(), default=-1) + 1
    return TokenizerTable(tokenizer, tuple(map(token_bytes.of, range(num_tokens))))


def build_vocabulary(
    read: TokenizerTable, vocab_size: int, eos_token_ids: tuple[int, ...]
) -> GrammarVocabulary:
    """Return the tokens of a model that has `vocab_size` of them, which at 150,000 takes 0.6 s of
    one core. Raises ValueError for tokens that llguidance does not take."""
    from llguidance import LLTokenizer, TokenizerWrapper  # late: an engine may have no grammars

    exact = ExactTokenizer(read, vocab_size, eos_token_ids)
    made = LLTokenizer(TokenizerWrapper(exact), n_vocab=vocab_size, eos_token=list(eos_token_ids))
    return GrammarVocabulary(made, exact.tokens)


def _without_space(part: object) -> object:
    """Return a normalizer or pre-tokenizer that puts nothing before a text; None for none."""
    if not isinstance(part, dict) or part.get("type") == "Prepend":
        return None
    for name in ("normalizers", "pretokenizers"):
        if isinstance(part.get(name), list):
            kept = [each for each in map(_without_space, part[name]) if each is not None]
            return part | {name: kept}
    if part.get("type") == "Metaspace":
        rest = {name: value for name, value in part.items() if name != "add_prefix_space"}
        return rest | {"prepend_scheme": "never"}
    return part | {"add_prefix_space": False} if "add_prefix_space" in part else part
