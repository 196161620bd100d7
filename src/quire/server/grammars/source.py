"""The sources of grammars, as clients give them."""

from enum import StrEnum
from typing import NamedTuple


class GrammarKind(StrEnum):
    """The ways in which a grammar is given."""

    JSON = "json"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


class GrammarSource(NamedTuple):
    """The source of a grammar: `text` is a schema as JSON, the choices as a JSON array of
    strings, a regular expression, or a grammar in Lark or GBNF. `field` is where the client wrote
    it. A schema that is `strict` has no keyword without a meaning; one that is `coarse` may be
    loosened further, so that a grammar can hold it."""

    kind: GrammarKind
    text: str
    field: str
    strict: bool = False
    coarse: bool = False
