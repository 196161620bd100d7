"""Filling in the middle: the tokens of each style, in its order, and suffixes within a text."""

import shutil
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from quire.server.text.infilling import (
    STYLES,
    Infilling,
    InfillingStyle,
    encode_suffix,
    find_infilling,
)
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer
from tests.server.served import BUNDLED
from tests.server.text.test_detokenizer import STORIES


def with_tokens(folder: Path, source: Path, *texts: str) -> TextTokenizer:
    """The tokenizer of a checkpoint with more tokens, at the end of its vocabulary."""
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (source / name).is_file():
            shutil.copy(source / name, folder)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in texts])
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_tokenizer(str(folder), None)


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_each_style_is_found_by_its_tokens(tmp_path: Path, style: InfillingStyle) -> None:
    texts = [text for text in style if text is not None]
    tokenizer = with_tokens(tmp_path, Path(BUNDLED), *texts)
    infilling = find_infilling(tokenizer)
    assert infilling is not None
    ids = [None if each is None else tokenizer.added_tokens[each] for each in style]
    assert list(infilling) == ids
    joined = infilling.join((1, 2), (3,))
    if style.before_middle is None:
        assert joined == (ids[1], 3, ids[0], 1, 2)
    else:
        assert joined == (ids[0], 1, 2, ids[1], 3, ids[2])
    for text in texts:
        assert tokenizer.encode(text, add_special_tokens=False) == (tokenizer.added_tokens[text],)


def test_a_model_without_all_tokens_of_a_style_has_none(tmp_path: Path) -> None:
    tokenizer = with_tokens(tmp_path, Path(BUNDLED), "<|fim_prefix|>", "<|fim_suffix|>")
    assert find_infilling(tokenizer) is None


@pytest.mark.parametrize("text", ["lo there", " lo", "\n", ");\n  x"])
@pytest.mark.parametrize("folder", [Path(BUNDLED), STORIES], ids=lambda path: path.name)
def test_a_suffix_is_encoded_as_it_stands_in_the_text(folder: Path, text: str) -> None:
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    tokenizer = load_tokenizer(str(folder), None)
    ids = tokenizer.encode("x", add_special_tokens=False)
    decoded = tokenizer.decode((*ids, *encode_suffix(text, tokenizer)), skip_special_tokens=False)
    assert decoded == f"x{text}"


def test_styles_are_told_apart() -> None:
    texts = [text for style in STYLES for text in style if text is not None]
    assert len(set(texts)) == len(texts)
    assert Infilling(7, 8, None).join((1,), ()) == (8, 7, 1)
