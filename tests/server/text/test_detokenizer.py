"""Text comes out in pieces that joined are the text of all tokens, for each kind of tokenizer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from quire.engine.grammar.token_bytes import TokenBytes, TokenizerKind, byte_characters
from quire.server.text.detokenizer import Detokenizer, continues_text
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer
from tests.profiles import cases
from tests.server.served import bundled_tokenizer

STORIES = Path(__file__).parents[3].parent / "shared" / "models" / "stories260K"

TEXTS = st.text(max_size=60) | st.lists(
    st.sampled_from(["the king", " ", "\n", "é", "日本", "😀", "e\u0301", "\ufffd", "\x00", "a"]),
    max_size=12,
).map("".join)


def pieces_of(
    token_bytes: TokenBytes, token_ids: list[int], *, at_start: bool = True
) -> Iterator[str]:
    detokenizer = Detokenizer(token_bytes, skip_special_tokens=True, at_start=at_start)
    yield from map(detokenizer.feed, token_ids)
    yield detokenizer.flush()


@pytest.fixture(scope="module", params=["bundled", "stories260K"])
def checkpoint(request: pytest.FixtureRequest) -> TextTokenizer:
    if request.param == "bundled":
        return bundled_tokenizer()
    if not STORIES.is_dir():
        pytest.skip("shared/models/stories260K is not there")
    return load_tokenizer(str(STORIES), None)


@given(text=TEXTS)
def test_joined_pieces_are_the_text(checkpoint: TextTokenizer, text: str) -> None:
    ids = list(checkpoint.encode(text, add_special_tokens=True))
    assert "".join(pieces_of(checkpoint.token_bytes, ids)) == checkpoint._tokenizer.decode(ids)


@given(prompt=TEXTS, output=TEXTS)
def test_output_is_decoded_in_the_context_of_its_prompt(
    checkpoint: TextTokenizer, prompt: str, output: str
) -> None:
    reference = checkpoint._tokenizer
    before = list(checkpoint.encode(prompt, add_special_tokens=True))
    after = list(checkpoint.encode(output, add_special_tokens=False))
    goes_on = continues_text(before, checkpoint.token_bytes, skip_special_tokens=True)
    pieces = pieces_of(checkpoint.token_bytes, after, at_start=not goes_on)
    together = reference.decode(before + after)
    assert together == reference.decode(before) + "".join(pieces)


@cases(300)
@given(data=st.data())
def test_any_tokens_of_a_byte_level_tokenizer_decode_as_the_library_decodes_them(
    tokenizer: TextTokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, 2047), max_size=40))
    pieces = "".join(pieces_of(tokenizer.token_bytes, ids))
    assert pieces == tokenizer._tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, 511), max_size=40))
def test_any_tokens_give_the_same_text_in_any_grouping(
    checkpoint: TextTokenizer, ids: list[int]
) -> None:
    """Bytes that are no UTF-8 have no right text, but they must have one text."""
    once = list(pieces_of(checkpoint.token_bytes, ids))
    again = Detokenizer(checkpoint.token_bytes, skip_special_tokens=True, at_start=True)
    halves = "".join(map(again.feed, ids[: len(ids) // 2]))
    rest = "".join(map(again.feed, ids[len(ids) // 2 :])) + again.flush()
    assert halves + rest == "".join(once)


def test_no_piece_holds_half_a_character(checkpoint: TextTokenizer) -> None:
    text = "naïve 日本語 😀 café"
    ids = list(checkpoint.encode(text, add_special_tokens=False))
    pieces = list(pieces_of(checkpoint.token_bytes, ids))
    assert "\ufffd" not in "".join(pieces)
    assert "" in pieces  # something was held back


def test_incomplete_character_at_the_end_is_flushed(checkpoint: TextTokenizer) -> None:
    ids = list(checkpoint.encode("a😀", add_special_tokens=False))[:-1]
    *fed, flushed = pieces_of(checkpoint.token_bytes, ids)
    assert "\ufffd" not in "".join(fed)
    assert flushed == "\ufffd"


def test_special_tokens_are_shown_only_on_request(checkpoint: TextTokenizer) -> None:
    ids = checkpoint.encode("hello", add_special_tokens=True)
    assert checkpoint.decode(ids, skip_special_tokens=True) == "hello"
    shown = checkpoint.decode(ids, skip_special_tokens=False)
    assert shown.startswith("<") and shown.endswith("hello")


def test_ids_outside_the_vocabulary_are_no_text(checkpoint: TextTokenizer) -> None:
    assert checkpoint.token_bytes.of(10**9) == b""


def test_byte_alphabet_is_the_librarys() -> None:
    assert set(byte_characters()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_characters().values()) == list(range(256))


def word_pieces() -> Tokenizer:
    vocab = {"[UNK]": 0, "play": 1, "##ing": 2, "the": 3, "lute": 4}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


def metaspaced() -> Tokenizer:
    vocab = {"<unk>": 0, "▁the": 1, "▁lu": 2, "te": 3}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def spaced() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "ids", "text"),
    [
        (word_pieces(), [1, 2, 3, 4], "playing the lute"),
        (metaspaced(), [1, 2, 3], "the lute"),
        (spaced(), [1, 2, 1], "a b a"),
    ],
)
def test_other_decoders_are_followed_by_what_each_token_adds(
    tokenizer: Tokenizer, ids: list[int], text: str
) -> None:
    token_bytes = TokenBytes(tokenizer)
    assert token_bytes.kind is TokenizerKind.OTHER
    assert tokenizer.decode(ids) == text
    assert "".join(pieces_of(token_bytes, ids)) == text
