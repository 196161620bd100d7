"""Small tokenizers that have, each in its way, what makes tokens differ from the text that they are
made from."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from quire.engine.grammar.token_bytes import byte_characters

TAGS = ("<x>", "<h1>", "<tool_call>", "</tool_call>", "<think>", "</think>")
"""Added tokens that are not special."""
END = "<|end|>"
SPECIAL = "<|other|>"
_MERGES = ["n a", "m e", "na me", "< /", "</ h", "f i", "fi n", "fin d", '{ "', '" :', "> {"]


class Kind(StrEnum):
    """The kinds of small tokenizers."""

    BYTES = "bytes"
    NFC = "nfc"
    NFKC = "nfkc"
    FALLBACK = "fallback"
    METASPACE = "metaspace"
    PLAIN_END = "plain_end"


def _byte_level(normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    pairs = [(left, right) for left, right in (each.split(" ") for each in _MERGES)]
    words = [*byte_characters(), *(left + right for left, right in pairs)]
    made = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, pairs))
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def _byte_fallback() -> Tokenizer:
    pairs = [("▁", "a"), ("n", "a"), ("m", "e"), ("na", "me"), ("<", "/")]
    letters = ["▁", *(chr(code) for code in range(0x21, 0x7F) if chr(code) != "~")]
    words = ["<unk>", *(f"<0x{value:02X}>" for value in range(256)), *letters]
    words += [left + right for left, right in pairs]
    vocabulary = {word: index for index, word in enumerate(words)}
    return Tokenizer(models.BPE(vocabulary, pairs, unk_token="<unk>", byte_fallback=True))


def _with_prefix() -> Tokenizer:
    made = _byte_fallback()
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return made


def _metaspace() -> Tokenizer:
    made = _byte_fallback()
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    made.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace("▁", prepend_scheme="always")]
    )
    return made


_BUILDERS: Mapping[Kind, Callable[[], Tokenizer]] = {
    Kind.BYTES: _byte_level,
    Kind.NFC: lambda: _byte_level(normalizers.NFC()),
    Kind.NFKC: lambda: _byte_level(normalizers.NFKC()),
    Kind.FALLBACK: _with_prefix,
    Kind.METASPACE: _metaspace,
    Kind.PLAIN_END: _byte_level,
}


def write_tokenizer(
    kind: Kind, folder: Path, tags: Sequence[str] = TAGS, *, are_special: bool = False
) -> Path:
    """Write a tokenizer of this kind, which has the tags as added tokens and whose outputs end with
    END, and return the folder."""
    made = _BUILDERS[kind]()
    made.add_tokens([AddedToken(tag, special=are_special, normalized=False) for tag in tags])
    made.add_tokens([AddedToken(END, special=kind is not Kind.PLAIN_END, normalized=False)])
    made.add_tokens([AddedToken(SPECIAL, special=True, normalized=False)])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return folder
