"""Turns tokens into text, one at a time: the parts joined are the text of all tokens together.

Bytes that do not yet make a character are held back; those that never will become U+FFFD.
"""

import codecs
from collections.abc import Collection, Iterable

from quire.engine.grammar.token_bytes import TokenBytes

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Makes the text of one output, or of one prompt from its beginning (`at_start`). Special
    tokens that are `shown` are not skipped."""

    def __init__(
        self,
        token_bytes: TokenBytes,
        *,
        skip_special_tokens: bool,
        at_start: bool,
        shown: Collection[str] = (),
    ) -> None:
        self._token_bytes = token_bytes
        self._skip_special = skip_special_tokens
        self._shown = shown
        self._strips_space = at_start and token_bytes.strips_space
        self._utf8 = _Utf8Decoder(errors="replace")

    def feed(self, token_id: int, *, shows_all: bool = False) -> str:
        """Return the text that this token completes; with `shows_all` it is not skipped."""
        if self._skip_special and not shows_all and self._token_bytes.is_special(token_id):
            special = self._token_bytes.of(token_id).decode(errors="replace")
            if special not in self._shown:
                return ""
        text = self._utf8.decode(self._token_bytes.of(token_id))
        if self._strips_space and text:
            self._strips_space = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """Return the text of incomplete bytes at the end: U+FFFD."""
        return self._utf8.decode(b"", final=True)


def continues_text(
    prompt_token_ids: Iterable[int], token_bytes: TokenBytes, *, skip_special_tokens: bool
) -> bool:
    """Return whether an output after this prompt goes on from a text, rather than begins one."""
    return any(
        token_bytes.of(token_id)
        for token_id in prompt_token_ids
        if not (skip_special_tokens and token_bytes.is_special(token_id))
    )
