"""Messages of the system reach every prompt, in whichever way the chat template takes them."""

from collections.abc import Sequence
from functools import cache, partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.generation.system_turns import RenderedTurns, SystemPlace, render_turns
from quire.server.text.chat_template import (
    ChatMessage,
    ChatTemplate,
    TemplateRefused,
    compile_template,
)
from tests.profiles import cases
from tests.server.generation.test_text_tools import TEMPLATES as TEXT_TEMPLATES

STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
)
STRICT_AND_ALTERNATING = (
    "{% set opens = messages[0].role == 'system' %}"
    "{% set rest = messages[1:] if opens else messages %}"
    "{% if opens %}<system>{{ messages[0].content }}</>{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)
REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)
FIRST_ALONE = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    "<{{ m.role }}>{{ m.content }}</>{% endif %}{% endfor %}"
)
LAST_ALONE = (
    "{% set found = namespace(text='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set found.text = m.content %}{% endif %}{% endfor %}<system>{{ found.text }}</>"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)
SWITCHING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | replace('/think', '') | trim }}</>"
    "{% endfor %}"
)
TEMPLATES = {
    **TEXT_TEMPLATES,
    "strict": STRICT,
    "strict and alternating": STRICT_AND_ALTERNATING,
    "refusing": REFUSING,
    "first alone": FIRST_ALONE,
    "last alone": LAST_ALONE,
    "switching": SWITCHING,
}
TAKE_ANY = ("chatml", "switching")
WORDS = st.text("ab \n<>é", min_size=1, max_size=24).map(lambda text: f"({text})")
SYSTEMS = st.lists(WORDS, max_size=2)


def message(role: str, content: str) -> ChatMessage:
    return {"role": role, "content": content}


@st.composite
def conversations(draw: st.DrawFn) -> list[ChatMessage]:
    """Turns of user and assistant, the user first and last, with messages of the system anywhere
    between them."""
    made = [message("system", text) for text in draw(SYSTEMS)]
    for index in range(2 * draw(st.integers(0, 2)) + 1):
        made.append(message("assistant" if index % 2 else "user", draw(WORDS)))
        made += [message("system", text) for text in draw(SYSTEMS)]
    return made


@cache
def compiled(source: str) -> ChatTemplate:
    return compile_template(source, {})


def plain(source: str, messages: Sequence[ChatMessage]) -> str:
    return compiled(source).render(
        messages, add_generation_prompt=True, continue_final_message=False, extra={}
    )


def rendered(source: str, messages: Sequence[ChatMessage]) -> RenderedTurns:
    return render_turns(messages, partial(plain, source))


@pytest.mark.parametrize("name", TEMPLATES)
@given(conversations())
@cases(60)
def test_no_text_is_lost(name: str, messages: list[ChatMessage]) -> None:
    text = rendered(TEMPLATES[name], messages).text
    place = 0
    for turn in (each for each in messages if each["role"] != "system"):
        place = text.index(str(turn["content"]), place) + 1
    said = [str(each["content"]) for each in messages]
    for system in (str(each["content"]) for each in messages if each["role"] == "system"):
        assert text.count(system) >= sum(each.count(system) for each in said)


@pytest.mark.parametrize("name", TEMPLATES)
@given(conversations())
@cases(60)
def test_what_the_template_takes_it_gets_as_it_is(name: str, messages: list[ChatMessage]) -> None:
    made = rendered(TEMPLATES[name], messages)
    if made.place is SystemPlace.AS_GIVEN:
        assert made.text == plain(TEMPLATES[name], messages)
    else:
        assert name not in TAKE_ANY


@pytest.mark.parametrize("name", TAKE_ANY)
@given(conversations(), st.sampled_from(["", " /think", "/think"]))
@cases(60)
def test_templates_that_take_any_see_no_change(
    name: str, messages: list[ChatMessage], switch: str
) -> None:
    switched = [{**each, "content": f"{each['content']}{switch}"} for each in messages]
    made = rendered(TEMPLATES[name], switched)
    assert made == (plain(TEMPLATES[name], switched), SystemPlace.AS_GIVEN)


def test_the_first_are_joined() -> None:
    messages = [message("system", "a"), message("system", "b"), message("user", "c")]
    made = rendered(STRICT, messages)
    assert made == ("<system>a\n\nb</><user>c</>", SystemPlace.JOINED)


def test_a_later_one_is_a_part_of_the_users_turn_beside_it() -> None:
    told = [message("system", "a"), message("user", "b"), message("system", "c")]
    reminder = "<system-reminder>\nc\n</system-reminder>"
    expected = f"<system>a</><user>b\n\n{reminder}</>"
    assert rendered(STRICT, told) == (expected, SystemPlace.LATER_AS_USER)
    answered = [*told[:2], message("assistant", "d"), told[2], message("user", "e")]
    expected = f"<system>a</><user>b</><assistant>d</><user>{reminder}\n\ne</>"
    assert rendered(STRICT_AND_ALTERNATING, answered).text == expected


def test_a_template_without_the_system_shows_it_as_the_users_words() -> None:
    messages = [message("system", "a"), message("user", "b")]
    made = rendered(REFUSING, messages)
    assert made == (
        "<user><system-reminder>\na\n</system-reminder>\n\nb</>",
        SystemPlace.ALL_AS_USER,
    )


def test_a_refusal_has_the_templates_own_words() -> None:
    messages = [message("system", "a"), message("user", "b"), message("user", "c")]
    with pytest.raises(TemplateRefused, match="must alternate"):
        rendered(STRICT_AND_ALTERNATING, messages)
    with pytest.raises(TemplateRefused, match="does not show"):
        rendered("{{ messages[0].role }}", messages)


def test_many_messages_of_the_system_are_no_work_of_their_square() -> None:
    """Each text is looked for in all of the prompt only where there are few."""
    messages = [message("system", f"{number:08}" * 200) for number in range(4000)]
    made = rendered(STRICT, [*messages, message("user", "x")])
    assert made.place is SystemPlace.JOINED
    made = rendered(STRICT, [message("user", "x"), *messages])
    assert made.place is SystemPlace.LATER_AS_USER
