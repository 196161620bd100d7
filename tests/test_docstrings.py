"""Docstrings of the source are sentences that stand alone, as docs and STYLE ask: the first word
shows most of those that are not."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "bench", "tools")
FRAGMENTS = frozenset(
    ("What", "How", "Why", "Where", "Whether", "Of", "Those", "Which", "Who", "With", "In", "From")
)
"""Words that begin a clause, not a sentence with a subject and a verb."""


def fragments(source: str) -> Iterator[str]:
    """The docstrings that begin so, of modules, classes and functions, and of attributes. "Whether"
    may begin that of a property, and of an attribute that is true or false."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        is_property = isinstance(node, ast.FunctionDef) and any(
            ast.unparse(each) == "property" for each in node.decorator_list
        )
        for before, text in zip([None, *body], body, strict=False):
            match text:
                case ast.Expr(value=ast.Constant(value=str(docstring))):
                    first = docstring.split(maxsplit=1)[0].rstrip(",:;")
                    is_choice = is_property or (
                        isinstance(before, ast.AnnAssign)
                        and ast.unparse(before.annotation) == "bool"
                    )
                    if first in FRAGMENTS and not (first == "Whether" and is_choice):
                        yield docstring


def test_fragments_are_found() -> None:
    source = '''"""What a module is."""

LIMIT = 3
"""How many there may be."""
is_on: bool = True
"""Whether it is on."""


class Thing:
    """A thing."""

    @property
    def is_whole(self) -> bool:
        """Whether it is whole."""

    def holds(self) -> bool:
        """Whether it holds."""
'''
    assert set(fragments(source)) == {
        "What a module is.",
        "How many there may be.",
        "Whether it holds.",
    }


def test_docstrings_are_sentences() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): list(fragments(path.read_text(encoding="utf-8")))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(found) > 200
    assert {path: texts for path, texts in found.items() if texts} == {}
