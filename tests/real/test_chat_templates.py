"""Chats become the tokens that transformers makes of them, on real tokenizers."""

from functools import cache, partial

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from quire.server.generation.system_turns import SystemPlace, render_turns
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer
from tests.real.models import real_folder
from tests.real.texts import conversations

TEMPLATES = (
    "smollm2",
    "tokenizers/qwen3",
    "tokenizers/deepseek_v3",
    "tokenizers/llama3_1",
    "tokenizers/gemma3",
)
"""Those that have a template for chats of text, and whose models are read by their own classes."""
ANSWER = (
    "Let me think.\n\nIt depends: **perhaps** 3 < 4, \u201cas they say\u201d \u2014 \U0001f600."
)


def messages(turns: list[str]) -> list[dict[str, str]]:
    """A conversation in which each turn of the user but the last was answered."""
    found = [{"role": "user", "content": turns[0]}]
    for turn in turns[1:]:
        found += [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": turn}]
    return found


@cache
def tokenizers(name: str) -> tuple[TextTokenizer, PreTrainedTokenizerBase]:
    """Return the same tokenizer twice: as a server has it, and as transformers reads it."""
    folder = str(real_folder(name))
    return load_tokenizer(folder, None), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("system", [None, "Answer briefly."])
def test_tokens_of_a_chat_are_those_of_transformers(name: str, system: str | None) -> None:
    ours, theirs = tokenizers(name)
    assert ours.template is not None
    for turns in conversations():
        chat = [{"role": "system", "content": system}] if system else []
        chat += messages(turns)
        text = ours.template.render(
            chat, add_generation_prompt=True, continue_final_message=False, extra={}
        )
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert list(ours.encode(text, add_special_tokens=False)) == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_messages_of_the_system_are_shown_wherever_they_stand(name: str) -> None:
    """As the template itself shows them, where it takes them there."""
    tokenizer, _ = tokenizers(name)
    template = tokenizer.template
    assert template is not None
    render = partial(
        template.render, add_generation_prompt=True, continue_final_message=False, extra={}
    )
    for turns in conversations():
        chat = messages(turns)
        for places in ((0,), (0, 0), (0, len(chat)), (0, 1, len(chat) // 2), (len(chat),)):
            told = chat[:]
            for number, place in enumerate(places):
                said = f"Rule number {number} says: answer briefly."
                told.insert(place + number, {"role": "system", "content": said})
            made = render_turns(told, render)
            assert all(each["content"].strip() in made.text for each in told if is_system(each))
            if made.place is SystemPlace.AS_GIVEN:
                assert made.text == render(told)
            else:
                assert name == "tokenizers/gemma3" and len(places) > 1


def is_system(message: dict[str, str]) -> bool:
    return message["role"] == "system"
