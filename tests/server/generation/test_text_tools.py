"""Tools, calls and results as text, in templates that know nothing of them."""

import json
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.openai.translation import chat_input
from quire.server.apis.protocol.chat import ChatRequest
from quire.server.generation.text_tools import render_with_tools
from quire.server.parsers.formats import ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from quire.server.text.chat_template import TemplateRefused, compile_template
from tests.profiles import cases
from tests.server.parsers.outputs import read

CHATML = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
)
FOLDING = (
    "{% set first = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}"
    "{% set messages = messages[1:] if first else messages %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no') }}{% endif %}"
    "<{{ m.role }}>{{ first if loop.first }}{{ m.content }}</>{% endfor %}"
)
WITHOUT_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}</>"
    "{% elif m.role == 'assistant' %}<assistant>{{ m.content }}</>{% endif %}{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "alternating": ALTERNATING,
    "folding": FOLDING,
    "without system": WITHOUT_SYSTEM,
}
TOOLS: list[dict[str, object]] = [
    {"type": "function", "function": {"name": name, "description": f"It {name}s."}}
    for name in ("find", "look")
]
SCHEMAS: dict[str, dict[str, object]] = {"find": {}, "look": {}}
WORDS = st.text("ab \n{[`'\"é<>", min_size=1, max_size=8).map(lambda text: f"({text})")
ARGUMENTS = st.dictionaries(WORDS, WORDS | st.integers() | st.lists(WORDS, max_size=2), max_size=2)
CALLS = st.lists(st.tuples(st.sampled_from(["find", "look"]), ARGUMENTS), min_size=1, max_size=3)
ROUNDS = st.tuples(WORDS, st.lists(CALLS, max_size=2), WORDS | st.just(""))


def call_of(name: str, arguments: dict[str, object], call_id: str) -> dict[str, object]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def rendered(
    messages: list[dict[str, object]], source: str, tools: list[dict[str, object]] | None = None
) -> str:
    request = ChatRequest(messages=messages, tools=tools)  # type: ignore[arg-type]
    template = compile_template(source, {})
    render: Callable[..., str] = partial(
        template.render, add_generation_prompt=True, continue_final_message=False, extra={}
    )
    return render_with_tools(chat_input(request), render).text


@pytest.mark.parametrize("name", TEMPLATES)
@given(rounds=st.lists(ROUNDS, min_size=1, max_size=3), random=st.randoms(use_true_random=False))
@cases(40)
def test_templates_show_calls_and_results_in_their_order(
    name: str,
    rounds: list[tuple[str, list[list[tuple[str, dict[str, object]]]], str]],
    random: Random,
) -> None:
    """Results come in any order, and are shown in that of their calls."""
    messages: list[dict[str, object]] = []
    shown: list[str] = []
    for asked, batches, said in rounds:
        messages.append({"role": "user", "content": asked})
        shown.append(asked)
        for calls in batches:
            ids = [f"call_{len(messages)}_{index}" for index in range(len(calls))]
            made = [call_of(*call, call_id) for call, call_id in zip(calls, ids, strict=True)]
            messages.append({"role": "assistant", "content": None, "tool_calls": made})
            results: list[dict[str, object]] = [
                {"role": "tool", "tool_call_id": call_id, "content": f"<{call_id}>"}
                for call_id in ids
            ]
            shown += [
                f"Result of {call[0]}:\n<{call_id}>"
                for call, call_id in zip(calls, ids, strict=True)
            ]
            messages += random.sample(results, len(results))
        messages.append({"role": "assistant", "content": said})
    text = rendered(messages, TEMPLATES[name], TOOLS)
    place = 0
    for each in ("It finds.", "It looks.", *shown):
        place = text.index(each, place)
    assert text.count("It finds.") == 1
    assert read_calls(text) == [
        [list(call) for call in calls] for _, batches, _ in rounds for calls in batches
    ]


def read_calls(text: str) -> list[list[list[object]]]:
    """The calls that the parser reads out of the assistant's turns."""
    options = ParserOptions(ToolFormatName.generic.value, SCHEMAS)
    turns = [turn.split("</>")[0] for turn in text.split("<assistant>")[1:]]
    outputs = [read([turn], options) for turn in turns]
    return [[list(call) for call in output.named] for output in outputs if output.calls]


@pytest.mark.parametrize("name", ["chatml", "folding"])
def test_a_template_that_knows_the_system_shows_tools_there(name: str) -> None:
    messages: list[dict[str, object]] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    text = rendered(messages, TEMPLATES[name], TOOLS)
    assert text.index("Be brief.") < text.index("It finds.") < text.index("Hi")
    assert text.count("Be brief.") == text.count("Hi") == 1


@pytest.mark.parametrize("name", ["alternating", "without system"])
def test_a_template_that_does_not_show_the_system_has_tools_in_the_first_turn(name: str) -> None:
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Go"},
    ]
    text = rendered(messages, TEMPLATES[name], TOOLS)
    assert text.startswith("<user>") and text.count("<user>") == 2
    assert text.index("It finds.") < text.index("Hi") < text.index("Yes?")


def test_a_turn_with_calls_keeps_its_text() -> None:
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call_of("look", {}, "a")]},
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
        {"role": "user", "content": "And?"},
    ]
    calls = '[{"name": "look", "arguments": {}}]'
    assert rendered(messages, ALTERNATING) == (
        f"<user>Hi</><assistant>I look.\n\n{calls}</><user>Result of look:\nseen\n\nAnd?</>"
    )


def test_turns_that_hold_no_calls_stay_as_they_are() -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": each} for each in ("a", "b")]
    assert rendered(messages, CHATML) == "<user>a</><user>b</>"
    with pytest.raises(TemplateRefused, match="must alternate"):
        rendered(messages, ALTERNATING)


@pytest.mark.parametrize(
    "source",
    ["{{ messages | length }}", "{% for m in messages %}{{ m.content | upper }}{% endfor %}"],
)
def test_a_template_that_does_not_show_tools_is_refused(source: str) -> None:
    with pytest.raises(TemplateRefused, match="does not show the description of the tools"):
        rendered([{"role": "user", "content": "Hi"}], source, TOOLS)
