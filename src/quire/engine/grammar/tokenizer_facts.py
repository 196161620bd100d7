"""The part of a tokenizer's files that server and engine both go by: the names of its special
tokens.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"


class TokenizerError(Exception):
    """The checkpoint has no tokenizer that Quire can read; the text says what is missing."""


class NamedTemplate(msgspec.Struct):
    name: str
    template: str


class TokenContent(msgspec.Struct):
    content: str


class TokenizerFacts(msgspec.Struct):
    """The part of `tokenizer_config.json` that matters here. What is put around a text is said by
    `tokenizer.json` alone: transformers 5 reads no `add_bos_token` beside it either."""

    bos_token: str | TokenContent | None = None
    eos_token: str | TokenContent | None = None
    pad_token: str | TokenContent | None = None
    unk_token: str | TokenContent | None = None
    additional_special_tokens: list[str | TokenContent] | None = None
    extra_special_tokens: list[str | TokenContent] | dict[str, str | TokenContent] | None = None
    chat_template: str | list[NamedTemplate] | None = None

    def special_tokens(self) -> Mapping[str, str]:
        """Return the tokens that templates know by name."""
        named = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "pad_token": self.pad_token,
            "unk_token": self.unk_token,
        }
        return {name: _content(token) for name, token in named.items() if token is not None}

    def all_special_tokens(self) -> set[str]:
        """Return every token that the configuration calls special."""
        extra = self.extra_special_tokens or []
        more = [*(extra.values() if isinstance(extra, dict) else extra)]
        more += self.additional_special_tokens or []
        return {*self.special_tokens().values(), *map(_content, more)}


def _content(token: str | TokenContent) -> str:
    return token if isinstance(token, str) else token.content


def read_facts(folder: Path) -> TokenizerFacts:
    """Read `tokenizer_config.json`, which may be missing. Raises TokenizerError."""
    path = folder / CONFIG
    if not path.is_file():
        return TokenizerFacts()
    try:
        return msgspec.json.decode(path.read_bytes(), type=TokenizerFacts)
    except msgspec.DecodeError as error:
        raise TokenizerError(f"cannot read {path}: {error}") from error


def mark_special_tokens(tokenizer: Tokenizer, facts: TokenizerFacts) -> None:
    """Mark every token special that the configuration names so, whatever `tokenizer.json` says."""
    known = tokenizer.get_added_tokens_decoder()
    special = {token.content for token in known.values() if token.special}
    named = sorted(facts.all_special_tokens() - special)
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token in named
            if tokenizer.token_to_id(token) is not None
        ]
    )


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the special tokens by their text."""
    added = tokenizer.get_added_tokens_decoder()
    return {token.content: token_id for token_id, token in added.items() if token.special}
