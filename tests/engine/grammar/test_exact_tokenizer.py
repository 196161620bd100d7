"""Tokens are exactly the bytes that they are made from, with tokenizers of every kind."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.engine.grammar.exact_tokenizer import ExactTokenizer, read_tokenizer
from tests.profiles import cases
from tests.server.grammars.tokenizers import END, SPECIAL, TAGS, Kind, write_tokenizer

PIECES = st.sampled_from([*TAGS, END, SPECIAL, "u\u0308", "\ufb01", "▁", " ", "<0x41>", "<unk>"])
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=5).map("".join)
NUM_PADDED = 5


@pytest.fixture(scope="module", params=list(Kind))
def exact(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ExactTokenizer]:
    read = read_tokenizer(write_tokenizer(request.param, tmp_path_factory.mktemp("tokenizer")))
    end_id = read.tokenizer.token_to_id(END)
    assert end_id is not None
    yield ExactTokenizer(read, len(read.token_bytes) + NUM_PADDED, (end_id,))


@given(TEXTS.map(lambda text: text.encode(errors="replace")) | st.binary(max_size=6))
@example(b"\xc3")
@cases(100)
def test_tokens_are_the_bytes(exact: ExactTokenizer, text: bytes) -> None:
    """And none of them is special, whatever the text reads as."""
    token_ids = exact(text)
    assert b"".join(exact.tokens[each] for each in token_ids) == text
    assert not set(token_ids) & set(exact.special_token_ids)


def test_tags_that_are_not_special_are_one_token(exact: ExactTokenizer) -> None:
    for tag in TAGS:
        assert [exact.tokens[each] for each in exact(tag.encode())] == [tag.encode()]


def test_what_ends_outputs_is_special(exact: ExactTokenizer) -> None:
    special = {exact.tokens[each] for each in exact.special_token_ids}
    assert special == {END.encode(), SPECIAL.encode()}
