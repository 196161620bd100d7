"""Tokens equal those of transformers, for every checkpoint at hand and each way to say BOS."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.grammar.tokenizer_facts import TokenizerError
from quire.server.errors import RequestError
from quire.server.generation.prompts import encode
from quire.server.models.input_context import InputContext, InputLimits, TokenizerSource
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer
from tests.profiles import cases
from tests.server.scripted_engine import FACTS
from tests.server.served import BUNDLED
from tests.server.text.test_detokenizer import STORIES

TEXTS = ["", "Hello there", "  two  spaces", "é 😀 日本", "<s>x", "<|end|>", "a\nb\n\n", "\x00"]


def checkpoints() -> list[Path]:
    return [path for path in (Path(BUNDLED), STORIES) if path.is_dir()]


def rewritten(source: Path, target: Path, **changes: object) -> Path:
    """A copy of a checkpoint's tokenizer with another configuration."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, target / name)
    path = target / "tokenizer_config.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, **changes}))
    return target


@pytest.mark.parametrize("folder", checkpoints(), ids=lambda path: path.name)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"add_bos_token": False, "add_eos_token": True},
    ],
    ids=str,
)
def test_tokens_equal_transformers(
    tmp_path: Path, folder: Path, changes: dict[str, object]
) -> None:
    from transformers import AutoTokenizer

    copy = rewritten(folder, tmp_path, **changes)
    ours = load_tokenizer(str(copy), None)
    theirs = AutoTokenizer.from_pretrained(copy)
    assert ours.bos_token_id == theirs.bos_token_id
    for text in TEXTS:
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert list(ours.encode(text, add_special_tokens=special)) == ids
            for skip in (True, False):
                shown = theirs.decode(ids, skip_special_tokens=skip)
                assert ours.decode(tuple(ids), skip_special_tokens=skip) == shown


def test_truncation_in_the_file_is_not_followed(tmp_path: Path) -> None:
    copy = rewritten(Path(BUNDLED), tmp_path)
    path = copy / "tokenizer.json"
    limited = json.loads(path.read_text())
    limited["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path.write_text(json.dumps(limited))
    ids = load_tokenizer(str(copy), None).encode("word " * 50, add_special_tokens=False)
    assert len(ids) > 50


@cases(100)
@given(st.text(max_size=40))
def test_any_text_comes_back(tokenizer: TextTokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_templates_come_from_file_or_configuration(tmp_path: Path) -> None:
    copy = rewritten(Path(BUNDLED), tmp_path, chat_template=None)
    assert load_tokenizer(str(copy), None).template is None
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    rewritten(Path(BUNDLED), tmp_path, chat_template=named)
    template = load_tokenizer(str(copy), None).template
    assert template is not None
    shown = template.render([], add_generation_prompt=True, continue_final_message=False, extra={})
    assert shown == "plain"
    (tmp_path / "chat_template.jinja").write_text("file")
    template = load_tokenizer(str(copy), None).template
    assert template is not None
    shown = template.render([], add_generation_prompt=True, continue_final_message=False, extra={})
    assert shown == "file"


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{"), ("tokenizer_config.json", "["), ("chat_template.jinja", "{% if %}")],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: str) -> None:
    copy = rewritten(Path(BUNDLED), tmp_path)
    (copy / name).write_text(content)
    with pytest.raises(TokenizerError):
        load_tokenizer(str(copy), None)


def test_tokens_without_an_embedding_are_refused(tokenizer: TextTokenizer) -> None:
    small = msgspec.structs.replace(FACTS, vocab_size=300)
    context = InputContext(
        InputLimits(small, 10, ("m",)), tokenizer, TokenizerSource(BUNDLED, None)
    )
    with pytest.raises(RequestError, match="outside the vocabulary"):
        encode("the king", "prompt", context, add_special_tokens=False)


def test_missing_tokenizer_is_said(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="tokenizer.json"):
        load_tokenizer(str(tmp_path), None)
