"""Turns text into tokens, and knows the text of each token.

It reads `tokenizer.json` through the `tokenizers` library: importing transformers for the same
would cost the server process seconds and a torch it must not touch.
"""

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from quire.engine.grammar.token_bytes import TokenBytes
from quire.engine.grammar.tokenizer_facts import (
    TOKENIZER,
    TokenizerError,
    mark_special_tokens,
    read_facts,
    special_tokens,
)
from quire.server.text.chat_template import Bound, ChatTemplate, TemplateRefused, compile_template
from quire.server.text.detokenizer import Detokenizer
from quire.server.text.tokenizer_files import find_folder, read_chat_template


class PairTokens(NamedTuple):
    """Two texts in one row of tokens: the first token of the `second` and the one behind its last;
    from `type_starts` on they are of the second type, nowhere if that is None."""

    token_ids: tuple[int, ...]
    second: tuple[int, int]
    type_starts: int | None


class TextTokenizer:
    """The tokenizer of a model, with its chat template (None without one) and the bytes of its
    tokens.

    special_tokens: the ids of those that its files call special, by their text: no text is made of
        them. Grammars go by them.
    template_names: `bos_token` and the like, as templates name them.
    added_tokens: the ids of those that are never parts of words, special or not, by their text.

    Encoding is thread-safe and, beyond a small part, leaves the GIL to others.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        bos_token_id: int | None,
        template: ChatTemplate | None,
        template_names: Mapping[str, str],
    ) -> None:
        self.special_tokens: Mapping[str, int] = special_tokens(tokenizer)
        self.added_tokens: Mapping[str, int] = {
            token.content: token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }
        self.token_bytes = TokenBytes(tokenizer)
        self.bos_token_id = bos_token_id
        self.template = template
        self._template_names = template_names
        self.num_tokens = _num_tokens(tokenizer)
        self.max_token_chars = max(map(len, tokenizer.get_vocab()), default=1)
        self._tokenizer = tokenizer

    def with_template(self, source: str, bound: Bound) -> "TextTokenizer":
        """Return the same tokenizer with another chat template, which is compiled and rendered
        within `bound`. Raises TemplateRefused for one that is broken."""
        other = copy(self)
        other.template = compile_template(source, self._template_names, bound)
        return other

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Return the token ids of a text."""
        # The batch call: unlike the single one it releases the GIL, and it skips the offsets.
        (encoding,) = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        return tuple(encoding.ids)

    def encode_pair(self, first: str, second: str) -> PairTokens:
        """Return the token ids of two texts, joined as the model has them joined."""
        (encoding,) = self._tokenizer.encode_batch_fast([(first, second)])
        texts, types = encoding.sequence_ids, encoding.type_ids
        places = [place for place, text in enumerate(texts) if text == 1]
        span = (places[0], places[-1] + 1) if places else (len(texts), len(texts))
        return PairTokens(tuple(encoding.ids), span, types.index(1) if 1 in types else None)

    def decode(self, token_ids: tuple[int, ...], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens that stand at the beginning of a text."""
        detokenizer = Detokenizer(
            self.token_bytes, skip_special_tokens=skip_special_tokens, at_start=True
        )
        return "".join(map(detokenizer.feed, token_ids)) + detokenizer.flush()


def _num_tokens(tokenizer: Tokenizer) -> int:
    """Return one more than the largest token id."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def load_tokenizer(model: str, revision: str | None) -> TextTokenizer:
    """Load the tokenizer of a model. Raises TokenizerError, whose text is for people."""
    folder = find_folder(model, revision)
    facts = read_facts(folder)
    tokenizer = _read_tokenizer(folder)
    mark_special_tokens(tokenizer, facts)
    source = read_chat_template(folder, facts)
    try:
        template = compile_template(source, facts.special_tokens()) if source else None
    except TemplateRefused as error:
        raise TokenizerError(f"{folder}: {error}") from error
    bos = facts.special_tokens().get("bos_token")
    bos_token_id = tokenizer.token_to_id(bos) if bos else None
    return TextTokenizer(tokenizer, bos_token_id, template, facts.special_tokens())


def _read_tokenizer(folder: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"cannot read {folder / TOKENIZER}: {error}") from error
    # A limit kept from training would cut prompts in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
