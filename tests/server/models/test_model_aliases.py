"""Names that clients ask for and that are not served are taken for one that is."""

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.config import MAX_NAME_CHARS, InvalidOption, ModelAlias
from tests.profiles import cases
from tests.server.cli.test_settings import config_of
from tests.server.models.several import ONE, TWO, serving_two, states, text_of, two_models
from tests.server.served import Served

ALIASES = (
    ModelAlias("claude-haiku-*", "zwei"),
    ModelAlias("claude-*", ONE),
    ModelAlias("gpt-[45]*", TWO),
)
ASKED = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def both() -> Iterator[Served]:
    with serving_two(replace(two_models(), model_aliases=ALIASES)) as served:
        yield served


@pytest.mark.parametrize(
    ("asked", "name", "model"),
    [
        ("claude-haiku-4-5-20251001", "zwei", TWO),
        ("claude-opus-4-8[1m]", ONE, ONE),
        ("gpt-5.2-codex", TWO, TWO),
        ("uno", "uno", ONE),
    ],
)
def test_an_alias_is_answered_by_its_model(both: Served, asked: str, name: str, model: str) -> None:
    """On every API, and the answer says who has answered."""
    text = text_of(model, 2)
    reply = both.complete(model=asked, prompt="x", max_tokens=2).json()
    assert (reply["model"], reply["choices"][0]["text"]) == (name, text)
    reply = both.chat(model=asked, messages=ASKED, max_tokens=2).json()
    assert (reply["model"], reply["choices"][0]["message"]["content"]) == (name, text)
    fields = {"model": asked, "messages": ASKED}
    reply = both.client.post("/v1/messages", json=fields | {"max_tokens": 2}).json()
    assert (reply["model"], reply["content"][0]["text"]) == (name, text)
    assert both.client.post("/v1/messages/count_tokens", json=fields).status_code == 200
    reply = both.client.post("/v1/responses", json={"model": asked, "input": "x"}).json()
    assert reply["model"] == name
    assert both.client.post("/tokenize", json={"model": asked, "prompt": "x"}).status_code == 200
    rendered = both.client.post("/v1/completions/render", json={"model": asked, "prompt": "x"})
    assert rendered.json()["model"] == name
    assert both.client.get(f"/v1/models/{asked}").json()["id"] == name
    loaded = both.client.post(f"/v1/models/{asked}/load").json()
    assert loaded["id"] == name


def test_only_what_is_served_is_listed(both: Served) -> None:
    assert set(states(both)) == {ONE, "uno", TWO, "zwei"}


@pytest.mark.parametrize("asked", ["Claude-opus", "gpt-3", "claude", "claude-" + "x" * 2000])
def test_what_matches_no_pattern_does_not_exist(both: Served, asked: str) -> None:
    reply = both.complete(model=asked, prompt="x", max_tokens=1)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


@given(
    st.lists(st.text("ab*?", min_size=1, max_size=4), max_size=4),
    st.text("ab", min_size=1, max_size=6),
)
@cases(100)
def test_the_first_pattern_that_matches_counts(patterns: list[str], asked: str) -> None:
    names = [ONE, "uno", TWO, "zwei"]
    aliases = tuple(map(ModelAlias, patterns, names))
    matching = [
        name for pattern, name in zip(patterns, names, strict=False) if fnmatchcase(asked, pattern)
    ]
    config = replace(two_models(), model_aliases=aliases)
    assert config.served_name(asked) == next(iter(matching), None)


def test_they_are_flags_or_a_variable() -> None:
    flags = ("--model-alias", "claude-*=s", "--model-alias", "a,b=large")
    config = config_of(
        "some/model", "--served-model-name", "s", "--served-model-name", "large", *flags
    )
    assert config.model_aliases == (ModelAlias("claude-*", "s"), ModelAlias("a,b", "large"))
    given = "claude-*=some/model, gpt-*=some/model"
    aliases = config_of("some/model", QUIRE_MODEL_ALIAS=given).model_aliases
    assert [each.pattern for each in aliases] == ["claude-*", "gpt-*"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("claude-*=other", "'other', which is not served; this server has some/model"),
        ("claude-*", "expected PATTERN=NAME, such as claude-*=some/model, got 'claude-*'"),
        ("=some/model", "expected PATTERN=NAME"),
        ("claude-*=", "expected PATTERN=NAME"),
        ("some/model=some/model", "is the name of a model that is served"),
    ],
)
def test_a_pattern_for_nothing_is_refused(given: str, said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        config_of("some/model", "--model-alias", given)
    assert said in str(refused.value)
    assert "--model-alias" in str(refused.value)


def test_names_beyond_all_measure_match_nothing() -> None:
    alias = ModelAlias("*", ONE)
    assert alias.matches("x" * MAX_NAME_CHARS)
    assert not alias.matches("x" * (MAX_NAME_CHARS + 1))
