"""`suffix` of a completion, `documents` of a chat: what becomes of them in the prompt."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from quire.server.http.endpoints import CHAT
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer
from tests.server.apis.openai.test_errors import error_of
from tests.server.base_bodies import BASE
from tests.server.served import BUNDLED, Served, plain_config, serving

MARKS = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
TEMPLATE = (
    "{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's tokenizer whose rarest tokens are those of StarCoder's style, with a template
    for documents."""
    folder = tmp_path_factory.mktemp("infilling")
    shutil.copy(Path(BUNDLED) / "tokenizer_config.json", folder)
    text = (Path(BUNDLED) / "tokenizer.json").read_text(encoding="utf-8")
    for mark, given in zip(MARKS, ("<|user|>", "<|assistant|>", "<|system|>"), strict=True):
        assert given in text
        text = text.replace(given, mark)
    Tokenizer.from_str(text).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def infilling(folder: Path) -> Iterator[Served]:
    with serving(plain_config(str(folder))) as served:
        yield served


@pytest.fixture(scope="module")
def tokens(folder: Path) -> TextTokenizer:
    return load_tokenizer(str(folder), None)


def test_the_output_stands_between_prompt_and_suffix(
    infilling: Served, tokens: TextTokenizer
) -> None:
    infilling.engine.submitted.clear()
    body = {"prompt": ["def f(", "y", ""], "suffix": "):\n", "max_tokens": 1}
    reply = infilling.complete(**body)
    assert reply.status_code == 200, reply.text
    before, within, after = (tokens.added_tokens[mark] for mark in MARKS)
    suffix = tokens.encode("):\n", add_special_tokens=False)
    for request, text in zip(infilling.engine.submitted, ("def f(", "y", ""), strict=True):
        ids = tokens.encode(text, add_special_tokens=True)
        begins = ids[: int(ids[:1] == (tokens.bos_token_id,))]
        prefix = ids[len(begins) :]
        wanted = (*begins, before, *prefix, within, *suffix, after)
        assert request.prompt_token_ids == wanted
    rendered = infilling.client.post("/v1/completions/render", json=body).json()["prompts"][0]
    assert rendered["token_ids"] == list(infilling.engine.submitted[0].prompt_token_ids)


def test_a_model_without_the_tokens_refuses_a_suffix(served: Served) -> None:
    error = error_of(served.complete(prompt="x", suffix="y"))
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    assert "<|fim_prefix|>" in str(error["message"])
    assert served.complete(prompt="x", suffix="", max_tokens=1).status_code == 200


@pytest.mark.parametrize("fields", [{"echo": True}, {"truncate_prompt_tokens": 5}], ids=str)
def test_what_a_suffix_does_not_go_with_is_refused(
    infilling: Served, fields: dict[str, object]
) -> None:
    error = error_of(infilling.complete(prompt="x", suffix="y", **fields))
    assert error["param"] == next(iter(fields))


def test_a_suffix_that_is_too_long_is_refused(infilling: Served) -> None:
    error = error_of(infilling.complete(prompt="x", suffix="a " * 300, max_tokens=1))
    assert error["code"] == "context_length_exceeded"


def test_documents_are_shown_by_the_template(infilling: Served, tokens: TextTokenizer) -> None:
    documents = [{"title": "a", "text": "first"}, {"title": "b", "text": "second"}]
    fields = {**BASE[CHAT], "documents": documents}
    (prompt,) = infilling.client.post(f"{CHAT}/render", json=fields).json()["prompts"]
    assert prompt["text"] == "[a: first][b: second]x"
    both = {**fields, "chat_template_kwargs": {"documents": []}}
    assert error_of(infilling.chat(**both))["param"] == "chat_template_kwargs.documents"


def test_a_template_without_a_place_for_documents_is_told_of(served: Served) -> None:
    error = error_of(served.chat(**BASE[CHAT], documents=[{"text": "x"}]))
    assert (error["param"], error["code"]) == ("documents", "unsupported_parameter")
    assert served.chat(**BASE[CHAT], documents=[]).status_code == 200
