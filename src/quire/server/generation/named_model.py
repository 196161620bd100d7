"""Reads which model a body names, before it is tokenised: another model has another tokenizer.

Nothing else of the body is looked at, and what is wrong with it is told later.
"""

import codecs
from typing import NamedTuple

import msgspec

from quire.server.errors import RequestError
from quire.server.http.json_object import parse_object

ABSENT = msgspec.Raw(b"null")


class _Fields(msgspec.Struct):
    model: msgspec.Raw = ABSENT
    deadline_ms: msgspec.Raw = ABSENT


class NamedModel(NamedTuple):
    """The model that a request names, None if it names none, and the time that it gives."""

    name: str | None
    time_limit_s: float | None


_FIELDS = msgspec.json.Decoder(_Fields)


def named_model(body: bytes) -> NamedModel:
    """Return which model a body names. It takes 2 ms for a megabyte at most. Raises RequestError
    for a body that is no JSON object."""
    try:
        fields = _FIELDS.decode(body.removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parse_object(body)  # it says what is wrong
        return NamedModel(None, None)
    try:
        name = msgspec.json.decode(fields.model, type=str | None)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RequestError("'model' must be a string.", param="model") from None
    return NamedModel(name, _time_limit_s(fields.deadline_ms))


def _time_limit_s(deadline_ms: msgspec.Raw) -> float | None:
    try:
        limit = msgspec.json.decode(deadline_ms, type=float | None)
    except msgspec.DecodeError:
        return None  # that it is no number is told with the other fields
    return None if limit is None else limit / 1000
