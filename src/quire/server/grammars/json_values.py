"""JSON values as Lark, by llguidance's `%json`, with the white space that may stand between their
parts."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from quire.server.grammars.json_depth import num_levels

MAX_LEVELS = 10
"""Levels of nesting that white space can indent at most: as deep as schemas that OpenAI takes."""
WIDEST_STEP = 4
"""Blanks a level of the widest usual indentation, that of Python's `json.tool`."""
_OPTIONS = {"json_allowed_escapes": 'nrbtf\\"'}
"""Without `\\u`, with which a key could pass for one that `patternProperties` does not mean."""


class Separators(NamedTuple):
    """The text between two items, and between a key and its value, where no other white space is
    allowed."""

    item: str
    key: str


COMPACT = Separators(",", ":")
TEMPLATE = Separators(", ", ": ")
"""Templates show models the calls of earlier turns with these separators."""


def json_value(schema: Mapping[str, object], separators: Separators | None) -> str:
    """Return Lark for a JSON value of the schema.

    separators: those that the value is written with. None allows what pretty printers write
        between two parts, once: nothing, a blank, or a line end, maybe after a blank, with an
        indentation for as many levels as the schema has, since a model may go on for ever with
        white space.
    """
    if separators is None:
        levels = num_levels(schema, MAX_LEVELS)
        pattern = rf" | ?\n( {{0,{levels * WIDEST_STEP}}}|\t{{0,{levels}}})"
        layout: dict[str, object] = {"whitespace_pattern": pattern}
    else:
        layout = {
            "whitespace_flexible": False,
            "item_separator": separators.item,
            "key_separator": separators.key,
        }
    return "%json " + json.dumps({**schema, "x-guidance": _OPTIONS | layout})
