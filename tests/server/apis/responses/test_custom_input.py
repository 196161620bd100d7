"""The input of a custom tool is the text that the model wrote, however its JSON is split."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.responses.items.custom_input import CustomInput
from tests.profiles import cases

TEXTS = st.text() | st.text(alphabet='"\\{}u\n\t😀d:')


def taken(arguments: str, sizes: list[int]) -> str:
    """The input that is taken out of arguments in pieces of so many characters."""
    taker, parts = CustomInput(), []
    while arguments:
        size = sizes.pop() if sizes else len(arguments)
        parts.append(taker.feed(arguments[:size]))
        arguments = arguments[size:]
    return "".join((*parts, taker.end()))


@given(TEXTS, st.booleans(), st.sampled_from(["", " ", "\n  "]), st.lists(st.integers(1, 9)))
@cases(200)
def test_the_text_of_the_input_is_what_its_json_says(
    text: str, ascii: bool, space: str, sizes: list[int]
) -> None:
    arguments = f'{{{space}"input":{space}{json.dumps(text, ensure_ascii=ascii)}{space}}}'
    assert taken(arguments, [*sizes]) == text


@given(TEXTS, st.lists(st.integers(1, 9)), st.data())
@cases(100)
def test_an_input_that_breaks_off_is_the_beginning_of_the_text(
    text: str, sizes: list[int], data: st.DataObject
) -> None:
    arguments = json.dumps({"input": text})
    num_chars = data.draw(st.integers(0, len(arguments)))
    cut = taken(arguments[:num_chars], [*sizes])
    assert text.startswith(cut.removesuffix("\ufffd"))
    assert cut == taken(arguments[:num_chars], [])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("{}", ""),
        ('{"patch": "x\\ny"}', "x\ny"),
        ('{"patch": 3}', '{"patch": 3}'),
        ('{"input": {"a": 1}}', '{"input": {"a": 1}}'),
        ('{"a": "x", "b": "y"}', '{"a": "x", "b": "y"}'),
        ('{"input": "x", "more": "y"}', "x"),
        ('{"input": "\\ud800"}', "\ufffd"),
        ('{"input": "\\ud800\\n"}', "\ufffd\n"),
        ('{"input": "\\udc00x"}', "\ufffdx"),
    ],
)
@given(sizes=st.lists(st.integers(1, 4)))
@cases(20)
def test_other_arguments_are_taken_as_they_can_be(
    arguments: str, text: str, sizes: list[int]
) -> None:
    assert taken(arguments, [*sizes]) == text
