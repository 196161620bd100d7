"""Reasoning in chat: how long it may be, what the template is told, and what the client sees."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import copytree

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.request import ReasoningTags, ThinkingBudget
from quire.server.text.tokenizer import TextTokenizer
from tests.profiles import cases
from tests.server.apis.openai.test_chat import prompt_text
from tests.server.apis.openai.test_streaming import chunks
from tests.server.apis.openai.test_tools import CALLED, HELLO, RESULT, TOOL, says
from tests.server.grammars.matching import accepts
from tests.server.served import (
    BUNDLED,
    Served,
    bundled_tokenizer,
    plain_config,
    serving,
    with_model,
)

SHOWN = "{{ '[' ~ %s ~ ']' }}"
"""Shows in the prompt what a template was told."""


def model_with(folder: Path, *names: str, opens: bool = False) -> str:
    """A model whose template reads these names; where it `opens` reasoning, the prompt ends so."""
    copytree(BUNDLED, folder)
    template = folder / "chat_template.jinja"
    shown = "".join(SHOWN % name for name in names)
    tag = "{{ '<think>\\n' }}" if opens else ""
    template.write_text(template.read_text().rstrip() + shown + tag + "{# </think> #}")
    return str(folder)


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose model reasons, and whose template has no name for how much."""
    folder = tmp_path_factory.mktemp("thinking") / "model"
    with serving(plain_config(model_with(folder, opens=True))) as served:
        yield served


@pytest.fixture(scope="module")
def channels() -> Iterator[Served]:
    """A server whose model writes as gpt-oss does."""
    config = with_model(plain_config(), reasoning_parser="gpt_oss", tool_call_parser="gpt_oss")
    with serving(config) as served:
        yield served


def strict(tool: Mapping[str, object]) -> dict[str, object]:
    function = tool["function"]
    assert isinstance(function, dict)
    return {**tool, "function": function | {"strict": True}}


def warnings_of(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.headers.get("x-quire-warnings", ""))


@pytest.mark.parametrize("opens", [True, False])
def test_a_budget_reaches_the_engine(tokenizer: TextTokenizer, tmp_path: Path, opens: bool) -> None:
    opening, closing = (
        tokenizer.encode(tag, add_special_tokens=False) for tag in ("<think>", "</think>")
    )
    folder = model_with(tmp_path / "model", opens=opens)
    with serving(plain_config(folder)) as server:
        assert server.chat(messages=HELLO, thinking_token_budget=7, n=2).status_code == 200
        budgets = {each.sampling.thinking_budget for each in server.engine.submitted}
        assert budgets == {ThinkingBudget(7, opening, closing, opens)}
        server.chat(messages=HELLO, thinking_token_budget=None)
        assert server.engine.submitted[-1].sampling.thinking_budget is None


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"thinking_token_budget": 5}, "thinking_token_budget", "--reasoning-parser"),
        ({"thinking_token_budget": -1}, "thinking_token_budget", "greater than or equal to 0"),
        ({"thinking_token_budget": "5"}, "thinking_token_budget", "integer"),
        ({"reasoning_effort": "much"}, "reasoning_effort", "'none'"),
        ({"reasoning_effort": 3}, "reasoning_effort", "'none'"),
    ],
)
def test_what_cannot_be_used_is_named(
    served: Served, fields: dict[str, object], param: str, said: str
) -> None:
    reply = served.chat(messages=HELLO, **fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], said in error["message"]) == (400, param, True)


def test_completions_take_no_budget(served: Served) -> None:
    error = served.complete(prompt="x", thinking_token_budget=5).json()["error"]
    assert (error["param"], error["code"]) == ("thinking_token_budget", "unsupported_parameter")


@pytest.mark.parametrize(
    ("names", "effort", "shown", "warning"),
    [
        ("reasoning_effort", "high", "[high]", ""),
        ("reasoning_effort", "none", "[none]", ""),
        ("enable_thinking", "none", "[False]", ""),
        ("enable_thinking", "low", "[True]", "as long as it likes"),
        ("thinking", "none", "[False]", ""),
        ("enable_thinking reasoning_effort", "low", "[True][low]", ""),
        ("", "low", "", "without effect: reasoning_effort"),
        ("", "none", "", ""),
    ],
)
def test_the_template_is_told_of_the_effort(
    tmp_path: Path, names: str, effort: str, shown: str, warning: str
) -> None:
    with serving(plain_config(model_with(tmp_path / "model", *names.split()))) as served:
        reply = served.chat(messages=HELLO, reasoning_effort=effort, max_tokens=1)
        assert warning in warnings_of(reply) and bool(warning) == bool(warnings_of(reply))
        assert prompt_text(served, bundled_tokenizer()).endswith(f"<|assistant|>{shown}")
        is_closed = effort == "none" and "thinking" not in names
        budget = served.engine.submitted[-1].sampling.thinking_budget
        assert (None if budget is None else budget.max_tokens) == (0 if is_closed else None)


def test_template_arguments_say_the_same_as_the_effort(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    with serving(plain_config(model_with(tmp_path / "model", "enable_thinking"))) as served:
        fields = {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}}
        assert warnings_of(served.chat(**fields)) == ""
        assert prompt_text(served, tokenizer).endswith("[False]")
        assert served.chat(**fields, reasoning_effort="none").status_code == 200
        error = served.chat(**fields, reasoning_effort="high").json()["error"]
        assert error["param"] == "chat_template_kwargs.enable_thinking"


@cases(30)
@given(st.text("ab \n", max_size=12), st.text("ab \n", max_size=12), st.booleans())
def test_reasoning_that_is_not_wanted_is_counted_all_the_same(
    thinking: Served, tokenizer: TextTokenizer, thought: str, said: str, stream: bool
) -> None:
    thinking.engine.script = says(f"{thought}</think>{said}", tokenizer)
    before = thinking.metric("quire:reasoning_tokens_total")
    usages, contents = [], []
    for include in (True, False):
        fields = {"messages": HELLO, "include_reasoning": include}
        if not stream:
            body = thinking.chat(**fields).json()
            message = body["choices"][0]["message"]
        else:
            options = {"include_usage": True}
            *parts, body = chunks(thinking.chat(**fields, stream=True, stream_options=options))
            deltas = [each["choices"][0]["delta"] for each in parts]  # type: ignore[index]
            message = {
                name: "".join(each.get(name, "") for each in deltas)
                for name in ("content", "reasoning_content")
            }
        usages.append(body["usage"]["completion_tokens_details"]["reasoning_tokens"])
        contents.append(message["content"])
        kept = message.get("reasoning_content") or ""
        assert kept == (thought.strip() if include else "")
    assert usages[0] == usages[1] > 0
    assert thinking.metric("quire:reasoning_tokens_total") == before + sum(usages)
    assert contents[0] == contents[1] == said.lstrip()


@pytest.mark.parametrize("stream", [False, True])
def test_an_output_is_of_its_grammar_after_the_reasoning(
    thinking: Served, tokenizer: TextTokenizer, stream: bool
) -> None:
    written = "Is it {?\n</think>\n\n" + '{"n":1}'
    thinking.engine.script = says(written, tokenizer)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reply = thinking.chat(messages=HELLO, response_format=format, stream=stream)
    grammar = thinking.engine.submitted[-1].sampling.grammar
    assert accepts(grammar, written) and not accepts(grammar, '{"n":1}')
    assert not accepts(grammar, written.replace("1", "x"))
    if stream:
        choices = [each["choices"][0] for each in chunks(reply)]  # type: ignore[index]
        parts = [choice["delta"] for choice in choices]
    else:
        choices = reply.json()["choices"]
        parts = [choices[0]["message"]]
    assert "".join(each.get("reasoning_content") or "" for each in parts) == "Is it {?"
    assert "".join(each.get("content") or "" for each in parts) == '{"n":1}'
    assert choices[-1]["finish_reason"] == "stop"


ANALYSIS = ReasoningTags("<|channel|>analysis<|message|>", "<|end|>")
AN_OBJECT = {"response_format": {"type": "json_object"}}
A_CHOICE = {"guided_choice": ["<think>", "yes"]}
A_CALL = {"tools": [TOOL], "tool_choice": "required"}


@pytest.mark.parametrize(
    ("fields", "opened", "open_to_come"),
    [
        (AN_OBJECT, ReasoningTags("", "</think>"), ANALYSIS),
        (A_CALL, ReasoningTags("", "</think>"), ANALYSIS),
        (A_CALL | AN_OBJECT, ReasoningTags("", "</think>"), ANALYSIS),
        (A_CHOICE, ReasoningTags("", "</think>"), None),
        ({"tools": [strict(TOOL)]}, ReasoningTags("", "</think>"), None),
        ({}, None, None),
    ],
)
def test_the_engine_is_told_of_a_reasoning_that_no_answer_begins_like(
    thinking: Served,
    channels: Served,
    fields: dict[str, object],
    opened: ReasoningTags | None,
    open_to_come: ReasoningTags | None,
) -> None:
    for served, tags in ((thinking, opened), (channels, open_to_come)):
        assert served.chat(messages=HELLO, **fields).status_code == 200
        assert served.engine.submitted[-1].sampling.reasoning_tags == tags


def test_an_output_cut_in_its_reasoning_counts_each_token_once(
    thinking: Served, tokenizer: TextTokenizer
) -> None:
    thinking.engine.script = says("To be, or not to be, that is the question", tokenizer)
    usage = thinking.chat(messages=HELLO, max_tokens=4).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 4


FINAL = "<|channel|>final<|message|>"
CALL = "<|channel|>commentary to=functions.find <|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        (
            {"response_format": {"type": "json_object"}},
            [FINAL + '{"n":1}'],
            ["{}", FINAL + "x", CALL + "{}"],
        ),
        (
            {"tools": [TOOL], "tool_choice": "required"},
            [CALL + '{"n": 7}'],
            [FINAL + "No.", CALL + '{"n": "x"}', 2 * (CALL + '{"n": 7}')],
        ),
        (
            {"tools": [strict(TOOL)]},
            [CALL + '{"n": 7}', FINAL + "No."],
            [CALL + '{"n": "x"}', "No."],
        ),
        (
            {"tools": [TOOL], "response_format": {"type": "json_object"}},
            [CALL + '{"n": 7}', FINAL + "{}"],
            [FINAL + "No.", "{}"],
        ),
    ],
)
def test_channels_are_held_to_a_grammar(
    channels: Served, fields: dict[str, object], right: list[str], wrong: list[str]
) -> None:
    assert channels.chat(messages=HELLO, **fields).status_code == 200
    grammar = channels.engine.submitted[-1].sampling.grammar
    assert all(accepts(grammar, text) for text in right)
    assert not any(accepts(grammar, text) for text in wrong)


def test_a_template_is_shown_reasoning_as_thinking(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    """As the template of gpt-oss names it, which wants no content beside it and calls."""
    folder = model_with(tmp_path / "model", "messages[0].thinking")
    said = {"role": "assistant", "reasoning_content": "Is it?"}
    called = {"tool_calls": [CALLED]}
    with serving(plain_config(folder)) as served:
        for fields, shown in (
            ({"content": "Yes."}, "[Is it?]"),
            ({"content": None} | called, "[Is it?]"),
            ({"content": "Yes."} | called, "[]"),
        ):
            served.chat(messages=[said | fields, RESULT][: 1 + ("tool_calls" in fields)])
            assert prompt_text(served, tokenizer).endswith(shown)
