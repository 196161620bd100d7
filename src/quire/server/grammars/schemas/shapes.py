"""Checks that the keywords of a schema hold what they must."""

from collections.abc import Callable, Mapping

from quire.server.grammars.schemas.keywords import HELD, TYPES
from quire.server.grammars.schemas.literals import is_number
from quire.server.grammars.schemas.references import invalid

_TYPES = frozenset((*TYPES, "integer"))


def check_shapes(schema: Mapping[str, object], path: str) -> None:
    """Raise RequestError for a keyword that does not hold what it must, by its path."""
    for keyword, value in schema.items():
        check = _CHECKS.get(keyword)
        why = None if check is None else check(value)
        if why is not None:
            raise invalid(f"{path}.{keyword}", why)


def _map(value: object) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


def _schemas(value: object) -> str | None:
    return None if isinstance(value, list) else "must be a list of schemas"


def _schema(value: object) -> str | None:
    return None if isinstance(value, dict | bool) else "must be a schema, an object or a boolean"


def _items(value: object) -> str | None:
    return None if isinstance(value, list) else _schema(value)


def _values(value: object) -> str | None:
    return None if isinstance(value, list) else "must be a list"


def _names(value: object) -> str | None:
    is_right = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return None if is_right else "must be a list of strings"


def _type(value: object) -> str | None:
    named = value if isinstance(value, list) else [value]
    wrong = [each for each in named if not isinstance(each, str) or each not in _TYPES]
    return f"must be of {', '.join(sorted(_TYPES))}" if wrong else None


def _count(value: object) -> str | None:
    is_right = is_number(value) and value >= 0 and float(value).is_integer()
    return None if is_right else "must be an integer, at least 0"


def _number(value: object) -> str | None:
    return None if is_number(value) else "must be a number"


def _bound(value: object) -> str | None:
    is_right = is_number(value) or isinstance(value, bool)
    return None if is_right else "must be a number, or in old drafts a boolean"


def _divisor(value: object) -> str | None:
    return None if is_number(value) and value > 0 else "must be a number above 0"


def _text(value: object) -> str | None:
    return None if isinstance(value, str) else "must be a string"


def _flag(value: object) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


_CHECKS: Mapping[str, Callable[[object], str | None]] = {
    **dict.fromkeys(("properties", "patternProperties", "dependencies"), _map),
    **dict.fromkeys(("dependentSchemas", "dependentRequired"), _map),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _schemas),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), _count),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _count),
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _bound),
    **dict.fromkeys(("pattern", "format"), _text),
    **dict.fromkeys(HELD, _schema),
    "items": _items,
    "enum": _values,
    "required": _names,
    "type": _type,
    "multipleOf": _divisor,
    "uniqueItems": _flag,
}
