"""Makes the tokenizer of a GGUF file, and its chat template, as transformers keeps them in files.

Two kinds are read: byte-level BPE (`gpt2`), and SentencePiece's BPE (`llama`), whose merges are
found again from the scores of its pieces.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as InTurn

from quire.models.loading.gguf.fields import Fields
from quire.models.loading.gguf.pre_tokenizers import PRE_TOKENIZERS
from quire.models.loading.gguf.reading import shown

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens."""
MAX_TOKEN_CHARS = 1024
"""Eight times the longest of any known model; work on one grows with the square of its length."""
MAX_MERGE_CHARS = 1 << 26
"""Twenty times those of Gemma 3, whose vocabulary has 262,144 pieces."""
SPACE = "\u2581"
"""SentencePiece's sign for a space."""
SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


class TokenizerFiles(NamedTuple):
    """The content of `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`."""

    tokenizer: str
    config: str
    chat_template: str | None


def build_tokenizer(fields: Fields) -> TokenizerFiles:
    """Return the tokenizer that a file's metadata describes. Raises CheckpointError."""
    vocabulary = _read(fields)
    build = _KINDS.get(vocabulary.kind)
    if build is None:
        raise fields.refusal(
            f"its tokenizer is of the kind {shown(vocabulary.kind)}, must be one of "
            f"{sorted(_KINDS)}"
        )
    tokenizer = build(fields, vocabulary)
    tokenizer.add_tokens(list(vocabulary.added()))
    _put_around(tokenizer, fields, vocabulary)
    special = {name: vocabulary.special(fields, key) for name, key in SPECIAL.items()}
    named = {name: token for name, token in special.items() if token is not None}
    return TokenizerFiles(
        tokenizer.to_str(),
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named}, indent=2),
        fields.text("tokenizer.chat_template", None),
    )


class Vocabulary(NamedTuple):
    """The tokens of a file by id. `types` say which are normal, special or single bytes; `scores`
    are those of SentencePiece, higher for what is merged first."""

    kind: str
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float] | None
    merges: Sequence[str]

    def ids(self) -> dict[str, int]:
        """Return the ids of all tokens; of equal ones the first, which no text can tell apart."""
        found: dict[str, int] = {}
        for token_id, token in enumerate(self.tokens):
            found.setdefault(token, token_id)
        return found

    def added(self) -> Iterator[AddedToken]:
        """Yield the tokens that are matched in texts first."""
        for token, kind in zip(self.tokens, self.types, strict=True):
            if kind in (CONTROL, UNKNOWN, USER_DEFINED) and not _is_blank(token):
                yield AddedToken(token, special=kind != USER_DEFINED, normalized=False)

    def special(self, fields: Fields, key: str) -> str | None:
        """Return the token whose id the file has under a key, or None."""
        token_id = fields.whole(PREFIX + key, None)
        if token_id is None:
            return None
        if token_id >= len(self.tokens):
            raise fields.refusal(
                f"{PREFIX}{key} is {token_id:,}, and it has {len(self.tokens):,} tokens"
            )
        return self.tokens[token_id]


def _read(fields: Fields) -> Vocabulary:
    tokens = fields.texts(PREFIX + "tokens")
    if not tokens:
        raise fields.refusal(f"{PREFIX}tokens is empty")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN_CHARS:
        raise fields.refusal(
            f"it has a token of {longest:,} characters, must be at most {MAX_TOKEN_CHARS:,}"
        )
    types = fields.numbers(PREFIX + "token_type", len(tokens))
    scores = fields.numbers(PREFIX + "scores", len(tokens))
    return Vocabulary(
        fields.text(PREFIX + "model", "") or "",
        tokens,
        [NORMAL] * len(tokens) if types is None else [int(each) for each in types.tolist()],
        None if scores is None else scores.tolist(),
        fields.texts(PREFIX + "merges", ()),
    )


def _byte_level(fields: Fields, vocabulary: Vocabulary) -> Tokenizer:
    name = fields.text(PREFIX + "pre", "gpt-2") or "gpt-2"
    known = PRE_TOKENIZERS.get(name)
    if known is None:
        raise fields.refusal(
            f"it cuts texts into words as {shown(name)} does (tokenizer.ggml.pre), which is not "
            f"known here; known are {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    merges = []
    for merge in vocabulary.merges:
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise fields.refusal(f"the merge {shown(merge)} is not of two parts")
        merges.append((left, right))
    tokenizer = _bpe(fields, vocabulary, merges, ignore_merges=known.ignores_merges)
    cuts: list[PreTokenizer] = [Split(Regex(each), "isolated") for each in known.patterns]
    tokenizer.pre_tokenizer = InTurn([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if known.composes:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _sentence_piece(fields: Fields, vocabulary: Vocabulary) -> Tokenizer:
    if vocabulary.scores is None:
        raise fields.refusal(f"it has no {PREFIX}scores, by which its pieces are merged")
    begins_with_space = fields.truth(PREFIX + "add_space_prefix", True)
    # Tokens of spaces alone are written with them, and merged of what they are by then.
    tokens = [SPACE * len(token) if _is_blank(token) else token for token in vocabulary.tokens]
    spelled = vocabulary._replace(tokens=tokens)
    unknown = spelled.special(fields, "unknown_token_id")
    merges = _in_order(_within(fields, _merges(spelled, vocabulary.scores)))
    tokenizer = _bpe(fields, spelled, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown)
    replaced = normalizers.Replace(" ", SPACE)
    first = [normalizers.Prepend(SPACE)] if begins_with_space else []
    tokenizer.normalizer = normalizers.Sequence([*first, replaced])
    stripped = [decoders.Strip(" ", 1, 0)] if begins_with_space else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
    )
    return tokenizer


def _is_blank(token: str) -> bool:
    return not token.strip(" ")


class Merge(NamedTuple):
    """Two pieces that are a piece together. One that a user defined comes before all others, then
    the `score` of the whole decides."""

    is_defined: bool
    score: float
    left: str
    right: str


def _merges(vocabulary: Vocabulary, scores: Sequence[float]) -> Iterator[Merge]:
    """Yield all merges of a vocabulary by the ids of their results."""
    types = vocabulary.types
    ids = {
        token: token_id
        for token, token_id in vocabulary.ids().items()
        if types[token_id] in (NORMAL, USER_DEFINED, UNUSED)
    }
    for token, token_id in ids.items():
        is_defined, score = types[token_id] == USER_DEFINED, scores[token_id]
        parts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        found = [(left, right) for left, right in parts if left in ids and right in ids]
        for left, right in sorted(found, key=lambda pair: (ids[pair[0]], ids[pair[1]])):
            yield Merge(is_defined, score, left, right)


def _in_order(merges: Iterable[Merge]) -> list[tuple[str, str]]:
    """Return merges as transformers' converter orders them. Of equal scores the longest left piece
    comes first, so that runs of spaces grow from the left to the longest that is a token."""
    ordered = sorted(
        merges,
        key=lambda each: (each.is_defined, each.score, len(each.left), len(each.right)),
        reverse=True,
    )
    return [(each.left, each.right) for each in ordered]


def _within(fields: Fields, merges: Iterator[Merge]) -> Iterator[Merge]:
    """Yield merges up to MAX_MERGE_CHARS. Raises CheckpointError where there are more."""
    num_chars = 0
    for merge in merges:
        num_chars += len(merge.left) + len(merge.right)
        if num_chars > MAX_MERGE_CHARS:
            raise fields.refusal(
                f"its pieces are merged in ways of more than {MAX_MERGE_CHARS:,} characters"
            )
        yield merge


def _bpe(
    fields: Fields,
    vocabulary: Vocabulary,
    merges: list[tuple[str, str]],
    **options: bool | str | None,
) -> Tokenizer:
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return Tokenizer(models.BPE(vocab=vocabulary.ids(), merges=merges, **given))
    except Exception as error:  # tokenizers raises nothing narrower
        why = shown(str(error))
        raise fields.refusal(f"its tokenizer cannot be made: {why}") from error


def _put_around(tokenizer: Tokenizer, fields: Fields, vocabulary: Vocabulary) -> None:
    """Let every text begin and end with the tokens that the file says it does."""
    is_piece = vocabulary.kind == "llama"
    wanted = (("add_bos_token", "bos_token_id", is_piece), ("add_eos_token", "eos_token_id", False))
    ids, around = vocabulary.ids(), []
    for flag, key, default in wanted:
        token = vocabulary.special(fields, key) if fields.truth(PREFIX + flag, default) else None
        around.append([] if token is None else [token])
    first, last = around
    if not first and not last:
        return
    try:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", *last, *(f"{each}:1" for each in first), "$B:1", *last],
            special_tokens=[(each, ids[each]) for each in dict.fromkeys([*first, *last])],
        )
    except ValueError as error:
        raise fields.refusal(f"{first + last} cannot stand around texts: {error}") from error


_KINDS: Mapping[str, Callable[[Fields, Vocabulary], Tokenizer]] = MappingProxyType(
    {"gpt2": _byte_level, "llama": _sentence_piece}
)
