"""Keywords of `jsonschema` for those who ask only whether a value is valid.

Its own gather the errors of all branches, and follow a reference wherever it stands: schemas whose
references meet again and again take time and memory that grow as 2 to the number of them.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

_DYNAMIC = ("$dynamicRef", "$recursiveRef")


class _Followed(NamedTuple):
    """The end of a reference for a value. Both are held, so that their ids are no others'."""

    holder: object
    value: object
    is_valid: bool


def leanly(checks: Any, schema: object) -> Any:
    """Return a class of `jsonschema` that finds the same values valid under `schema`, with memory
    for one way through it, and that follows each of its references once a value. Errors say
    nothing."""
    from jsonschema import validators

    holders = _holders(schema)
    followed: dict[tuple[int, int], _Followed] = {}
    follow = checks.VALIDATORS.get("$ref")

    def ref(validator: Any, reference: Any, value: object, holder: object) -> Iterator[Exception]:
        if id(holder) not in holders:
            yield from follow(validator, reference, value, holder) or ()
            return
        key = (id(holder), id(value))
        if key not in followed:
            is_valid = _is_empty(follow(validator, reference, value, holder))
            followed[key] = _Followed(holder, value, is_valid)
        if not followed[key].is_valid:
            yield _error()

    keywords: dict[str, Callable[..., object]] = {"anyOf": _any_of, "oneOf": _one_of}
    known = {name: each for name, each in keywords.items() if name in checks.VALIDATORS}
    if follow is not None:
        known["$ref"] = ref
    return validators.extend(checks, known)


def _any_of(
    validator: Any, branches: Sequence[object], value: object, _: object
) -> Iterator[Exception]:
    if not any(_is_empty(validator.descend(value, each)) for each in branches):
        yield _error()


def _one_of(
    validator: Any, branches: Sequence[object], value: object, _: object
) -> Iterator[Exception]:
    valid = (each for each in branches if _is_empty(validator.descend(value, each)))
    if len(list(islice(valid, 2))) != 1:
        yield _error()


def _error() -> Exception:
    from jsonschema import ValidationError

    error: Exception = ValidationError("")
    return error


def _is_empty(errors: Iterator[object] | None) -> bool:
    return errors is None or next(errors, None) is None


def _holders(schema: object) -> frozenset[int]:
    """Return the ids of all schemas that refer to another, which has the same meaning from wherever
    it is reached; of none where a reference depends on that."""
    holders: set[int] = set()
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if any(keyword in each for keyword in _DYNAMIC):
                return frozenset()
            if "$ref" in each:
                holders.add(id(each))
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return frozenset(holders)
