"""Grammars whose texts would run on over the tag that ends them are found."""

import pytest

from quire.server.grammars.line_ends import may_run_on
from tests.server.grammars.test_text_grammars import LINES, PATCH

ANY_SOURCE = r"""
start: pragma_source | plain_source
pragma_source: PRAGMA_LINE NEWLINE SOURCE
plain_source: SOURCE
PRAGMA_LINE: /[ \t]*\/\/ @exec:[^\r\n]*/
NEWLINE: /\r?\n/
SOURCE: /[\s\S]+/
"""


@pytest.mark.parametrize(
    "lark",
    [
        PATCH,
        LINES,
        'start: "x"',
        "start: /[a-z]+/ // any text: /[^x]*/",
        "start: WORD (WS_INLINE WORD)*\nWORD: /\\w+/\n%import common.WS_INLINE",
        'start: "a" LF+ "b"\n%import common.LF',
        "start: (LINE NL)+\nLINE: /[^\\r\\n]*/\nNL: /\\r?\\n/",
        'start: HEAD TAIL\nHEAD: "a\\n"\nTAIL: HEAD "b"',
        "start: A\nA: /.*/\n%ignore /[ \\t]+/",
    ],
)
def test_texts_that_end_are_passed(lark: str) -> None:
    assert not may_run_on(lark)


@pytest.mark.parametrize(
    "lark",
    [
        ANY_SOURCE,
        "start: /[^x]*/",
        "start: /.*/s",
        "start: /(?s:.*)/",
        "start: /(?is:.*)/",
        "start: /([^\\n]*\\n)+/",
        "start: /\\S+\\s/",
        "start: /a\\x0ab/",
        "start: /\\P{L}+/",
        'start: TEXT\nTEXT: (CHAR | "\\n")+\nCHAR: /[^\\n]/',
        'start: TEXT\nTEXT: (CHAR | NL)+\nCHAR: /[^\\n]/\nNL: "\\n"',
        "start: TEXT\nTEXT: (/./ | LF)+\n%import common.LF",
        'start: %json {"type": "string"}',
        "start: %lark {\nstart: /[^x]*/\n}",
        "start: %regex { }",
        "start: A\nA: /.*/\n%ignore /\\s+/",
        "start: WORD (WS WORD)*\nWORD: /\\w+/\n%import common.WS",
        'start: "a" NEWLINE\n%import common (LF, NEWLINE)',
        "start: A\nA: LF+\n%import common.LF",
        "start: A\nA: B\nB: C\nC: D D*\nD: /\\n/",
    ],
)
def test_texts_that_may_run_on_are_found(lark: str) -> None:
    assert may_run_on(lark)
