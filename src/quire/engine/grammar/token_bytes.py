"""Maps tokens to bytes, whose UTF-8 is the text: a table that makes detokenisation a look-up.

byte-level BPE          "Ġthe"   -> b" the"     (each character stands for one byte)
byte fallback           "▁the"   -> b" the",    "<0xE2>" -> b"\\xe2"
any other decoder       what the token adds when decoded after another token
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec
from tokenizers import Tokenizer

_FALLBACK_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
TokenBytesOf: TypeAlias = Callable[[int, str], bytes]


class DecoderNode(msgspec.Struct):
    """The part of a decoder's description in `tokenizer.json` that is read."""

    type: str
    decoders: tuple["DecoderNode", ...] = ()
    pattern: dict[str, str] = {}
    content: str = ""


class TokenizerKind(StrEnum):
    """The ways in which a tokenizer's tokens stand for bytes."""

    BYTE_LEVEL = "byte_level"
    BYTE_FALLBACK = "byte_fallback"
    OTHER = "other"


class TokenBytes:
    """Holds the bytes of each token, which are found when they are first needed.

    `strips_space`: the decoder takes one leading space off the beginning of a text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        nodes = _leaves(tokenizer)
        self.kind = _kind(nodes)
        self._tokenizer = tokenizer
        self._bytes_of = _bytes_of(self.kind, nodes, tokenizer)
        self._known: dict[int, bytes] = {}
        self.strips_space = self._strips_space(nodes)
        added = tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(id for id, token in added.items() if token.special)

    def of(self, token_id: int) -> bytes:
        """Return the bytes of a token. Ids outside the vocabulary, which models with a padded head
        can sample, have none."""
        known = self._known.get(token_id)
        if known is None:
            token = self._tokenizer.id_to_token(token_id)
            known = b"" if token is None else self._bytes_of(token_id, token)
            self._known[token_id] = known
        return known

    def _strips_space(self, nodes: Sequence[DecoderNode]) -> bool:
        if self.kind is not TokenizerKind.OTHER:
            return any(node.type in ("Strip", "Metaspace") for node in nodes)
        vocabulary = self._tokenizer.get_vocab().values()
        spaced = next((id for id in vocabulary if self.of(id).startswith(b" ")), None)
        if spaced is None:
            return False
        return not self._tokenizer.decode([spaced], skip_special_tokens=False).startswith(" ")

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids


def _leaves(tokenizer: Tokenizer) -> Sequence[DecoderNode]:
    if tokenizer.decoder is None:
        return ()
    described = msgspec.json.decode(tokenizer.decoder.__getstate__(), type=DecoderNode)
    return described.decoders if described.type == "Sequence" else (described,)


def _kind(nodes: Sequence[DecoderNode]) -> TokenizerKind:
    types = {node.type for node in nodes}
    if "ByteLevel" in types:
        return TokenizerKind.BYTE_LEVEL
    if "ByteFallback" in types:
        return TokenizerKind.BYTE_FALLBACK
    return TokenizerKind.OTHER


def _bytes_of(
    kind: TokenizerKind, nodes: Sequence[DecoderNode], tokenizer: Tokenizer
) -> TokenBytesOf:
    if kind is TokenizerKind.BYTE_LEVEL:
        return _byte_level(byte_characters())
    if kind is TokenizerKind.BYTE_FALLBACK:
        return _byte_fallback(_replacements(nodes))
    return _by_difference(tokenizer)


def byte_characters() -> Mapping[str, int]:
    """Return GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and
    on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    shifted = {chr(0x100 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


def _byte_level(alphabet: Mapping[str, int]) -> TokenBytesOf:
    no_byte = {chr(value): "\uffff" for value in range(0x100) if chr(value) not in alphabet}
    latin = str.maketrans({char: chr(byte) for char, byte in alphabet.items()} | no_byte)

    def bytes_of(token_id: int, token: str) -> bytes:
        try:
            return token.translate(latin).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()

    return bytes_of


def _replacements(nodes: Sequence[DecoderNode]) -> Mapping[str, str]:
    found = {n.pattern["String"]: n.content for n in nodes if "String" in n.pattern}
    if any(node.type == "Metaspace" for node in nodes):
        found["▁"] = " "
    return found


def _byte_fallback(replacements: Mapping[str, str]) -> TokenBytesOf:
    def bytes_of(token_id: int, token: str) -> bytes:
        byte = _FALLBACK_BYTE.fullmatch(token)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        for old, new in replacements.items():
            token = token.replace(old, new)
        return token.encode()

    return bytes_of


def _by_difference(tokenizer: Tokenizer) -> TokenBytesOf:
    def bytes_of(token_id: int, token: str) -> bytes:
        before = tokenizer.decode([token_id], skip_special_tokens=False)
        both = tokenizer.decode([token_id, token_id], skip_special_tokens=False)
        return (both[len(before) :] if both.startswith(before) else before).encode()

    return bytes_of
