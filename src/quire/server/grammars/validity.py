"""Checks finished values against the schemas that their grammars did not hold them to in full.

A check may take long, whatever its size: it belongs into a process of its own.
"""

import json
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import NamedTuple

from quire.server.grammars.value_keywords import leanly
from quire.server.text.bounded_work import bounded_work

MAX_CHECK_BYTES = 128 * 1024 * 1024
"""New memory of a check: what is found is a word, and each reference is followed once a value."""


class Validity(StrEnum):
    """The ways in which a check of values against their schemas ends."""

    VALID = "valid"
    INVALID = "invalid"
    UNCHECKED = "unchecked"


class ValueCheck(NamedTuple):
    """A value that a model wrote, as text, and the schema that it is to be of, as JSON."""

    schema: str
    value: str


def check_values(checks: Sequence[ValueCheck]) -> Validity:
    """Return whether all values are of their schemas; the process ends where that takes too long.
    Formats are annotations, and nothing is fetched: a schema that refers to another is not
    checked."""
    import referencing.jsonschema  # noqa: F401

    with bounded_work(MAX_CHECK_BYTES):
        ends = {_validity(check) for check in checks}
    for end in (Validity.INVALID, Validity.UNCHECKED):
        if end in ends:
            return end
    return Validity.VALID


def _validity(check: ValueCheck) -> Validity:
    from jsonschema.validators import validator_for
    from referencing.jsonschema import EMPTY_REGISTRY

    try:
        value = _read(check.value)
    except (ValueError, RecursionError):
        return Validity.INVALID
    try:
        schema = _read(check.schema)
        checks = leanly(validator_for(schema), schema)
        if isinstance(schema, dict):  # else each reference to the whole leads to another class
            schema.pop("$schema", None)
        validator = checks(schema, registry=EMPTY_REGISTRY)
        return Validity.VALID if validator.is_valid(value) else Validity.INVALID
    except Exception:  # what a validator raises for a schema that it cannot read is open
        return Validity.UNCHECKED


def _read(text: str) -> object:
    """Return a value whose numbers are decimal: 0.6 is no multiple of 0.1 in binary."""
    value: object = json.loads(text, parse_float=_decimal)
    return value


def _decimal(digits: str) -> Decimal | float:
    try:
        return Decimal(digits)
    except InvalidOperation:  # its exponent has twenty digits
        return float(digits)
