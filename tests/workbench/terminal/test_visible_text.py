"""Text of strangers never holds what a terminal obeys."""

import re
import unicodedata
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from quire.workbench.terminal.visible_text import HIDDEN, on_one_line, visible

PAGE = Path(__file__).parents[3] / "src/quire/server/app/page/static/text.js"
HOSTILE = st.text(st.sampled_from("\x1b\x07\x9b\x9d\r\b\u202e\u2066\u200b\ufeff\U000e0041ab \n\t"))


@given(HOSTILE | st.text())
def test_no_control_and_no_mark_is_left(text: str) -> None:
    shown = visible(text)
    assert not HIDDEN.search(shown)
    assert {char for char in shown if unicodedata.category(char) in ("Cc", "Cs")} <= {"\n", "\t"}
    assert not {unicodedata.bidirectional(char) for char in shown} & {"RLO", "LRO", "RLI", "FSI"}
    shown.encode()  # half of a surrogate pair could not be written


@given(HOSTILE | st.text())
def test_each_is_shown_as_its_code_point_and_the_rest_is_kept(text: str) -> None:
    def back(found: re.Match[str]) -> str:
        return chr(int(found[1], 16))

    unclear = "<U+" in text
    assert unclear or re.sub(r"<U\+([0-9A-F]{4,6})>", back, visible(text)) == text


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])))
def test_plain_text_is_left_alone(text: str) -> None:
    assert visible(text) == text


def test_sequences_that_terminals_obey_are_shown() -> None:
    assert visible("\x1b]52;c;aGk=\x07") == "<U+001B>]52;c;aGk=<U+0007>"
    assert visible("\x9b2J") == "<U+009B>2J"
    assert visible("a\r\u202eb") == "a<U+000D><U+202E>b"


def test_the_page_marks_the_same_characters() -> None:
    source = PAGE.read_text(encoding="utf-8")
    (told,) = re.findall(r"new RegExp\((.*?), \"gu\"\)", source, re.DOTALL)
    pattern = "".join(re.findall(r'"(.*?)"', told)).replace("\\\\", "\\")
    pattern = re.sub(r"\\u\{(\w+)\}", lambda found: f"\\U{found[1]:0>8}", pattern)
    marked = {code for code in range(0x110000) if re.match(pattern, chr(code))}
    assert {code for code in range(0x110000) if HIDDEN.match(chr(code))} == marked | set(
        range(0xD800, 0xE000)
    )


@given(HOSTILE | st.text(), st.integers(1, 40))
def test_one_line_is_one_line_of_few_characters(text: str, max_chars: int) -> None:
    line = on_one_line(text, max_chars)
    assert "\n" not in line and len(line) <= max_chars
