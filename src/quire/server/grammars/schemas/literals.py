"""The values of schemas that list them."""

import json
from collections.abc import Iterable, Mapping
from typing import TypeGuard

_KINDS = {bool: "boolean", str: "string", list: "array", dict: "object", type(None): "null"}


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number in JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def kind_of(value: object) -> str:
    """Return the type of a value of JSON, in JSON Schema's words."""
    return _KINDS.get(type(value), "number")


def key_of(value: object) -> str:
    """Return a text that is the same for values that are equal in JSON: 1 and 1.0 are, 1 and true
    are not."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value


def literals_of(schema: Mapping[str, object]) -> list[object] | None:
    """Return the values that a schema lists, each once, None where it does not list them. Of what
    else it says nothing is looked at."""
    given = schema.get("enum")
    values = list(given) if isinstance(given, list) else None
    if "const" in schema:
        only = key_of(schema["const"])
        kept = values is None or any(key_of(each) == only for each in values)
        values = [schema["const"]] if kept else []
    return None if values is None else distinct(values)


def distinct(values: Iterable[object]) -> list[object]:
    """Return the values, each once."""
    return list({key_of(value): value for value in values}.values())
