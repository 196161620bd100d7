"""Rules of Lark that are collected one after another."""

from collections.abc import Mapping

from quire.server.grammars.compose import lacks, literal, written
from quire.server.grammars.json_values import Separators

GAP = "GAP?"
"""The line end that models may write beside a tag."""


class Rules:
    """Collects rules under names of their own, those of the same expression once.

    special_tokens: the tokenizer's special tokens by their text.
    separators: those of JSON in arguments; None allows white space between its parts.
    """

    def __init__(
        self, special_tokens: Mapping[str, int], separators: Separators | None = None
    ) -> None:
        self.separators = separators
        self._special_tokens = special_tokens
        self._names: dict[tuple[str, str, str], str] = {}

    @property
    def text(self) -> str:
        """The rules, a line each."""
        lines = (
            f"{name}{options}: {expression}"
            for (_, options, expression), name in self._names.items()
        )
        return "\n".join(('GAP: "\\n"', *lines))

    def add(self, expression: str) -> str:
        """Return the name of a rule."""
        return self._name("call", "", expression)

    def add_terminal(self, expression: str) -> str:
        """Return the name of a terminal."""
        return self._name("CALL", "", expression)

    def add_lazy(self, expression: str) -> str:
        """Return the name of a rule of one terminal, which ends where it first matches."""
        return self._name("call", "[lazy]", expression)

    def _name(self, stem: str, options: str, expression: str) -> str:
        key = (stem, options, expression)
        return self._names.setdefault(key, f"{stem}_{len(self._names)}")

    def is_special(self, text: str) -> bool:
        """Return whether a tag is a special token."""
        return text in self._special_tokens

    def written(self, text: str, *tags: str) -> str:
        """Return an expression for a text in which those of the tags that are special tokens are
        written as such."""
        return written(text, tags, self._special_tokens)

    def until(self, terminal: str, end: str) -> str:
        """Return an expression for a terminal without the tag in it, and then the tag.

        A text that may hold the beginning of a tag of text is one terminal with it: else a part of
        the tag would be taken for more of the text.
        """
        if self.is_special(end):
            return f"{self.add_terminal(f'({terminal}) & {lacks(end)}')} {self.written(end, end)}"
        return self.add_lazy(f"({terminal}) {literal(end)}")
