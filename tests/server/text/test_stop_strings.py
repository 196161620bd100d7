"""A stop string ends a text where it is completed first, however the text arrives."""

from hypothesis import given
from hypothesis import strategies as st

from quire.server.text.stop_strings import StopStringMatcher, StopStringTable
from tests.profiles import cases

LETTERS = "abé"
TEXTS = st.text(LETTERS, max_size=30)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """By trying every end: the first at which the text ends with a stop string, the longest one."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


def in_parts(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@cases(500)
@given(TEXTS, STOPS, st.lists(st.integers(0, 30), max_size=8), st.booleans())
def test_any_split_gives_what_a_naive_search_gives(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    scanner = StopStringMatcher(StopStringTable(stops, include_stop=include))
    out, stop = "", None
    for part in in_parts(text, cuts):
        scan = scanner.feed(part)
        out += scan.text
        stop = scan.stop
        if stop is not None:
            break
    else:
        out += scanner.flush()
    assert (out, stop) == naive(text, stops, include=include)


@cases(300)
@given(TEXTS, STOPS)
def test_no_more_is_held_back_than_could_be_a_stop_string(text: str, stops: list[str]) -> None:
    scanner = StopStringMatcher(StopStringTable(stops, include_stop=False))
    out = ""
    for index, letter in enumerate(text):
        scan = scanner.feed(letter)
        out += scan.text
        if scan.stop is not None:
            return
        held = text[len(out) : index + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_long_stop_strings_cost_no_more_than_the_text() -> None:
    scanner = StopStringMatcher(StopStringTable(["a" * 1023 + "b"] * 16, include_stop=False))
    out = "".join(scanner.feed("a").text for _ in range(20_000)) + scanner.flush()
    assert out == "a" * 20_000
