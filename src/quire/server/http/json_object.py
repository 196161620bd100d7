"""Parses the bytes of a body as one JSON object."""

import codecs

from pydantic_core import from_json

from quire.server.errors import RequestError


def parse_object(body: bytes, what: str = "The request body") -> dict[str, object]:
    """Parse a JSON object. Raises RequestError.

    The content type does not matter: whatever a client calls it, the body must be JSON in UTF-8,
    with or without the byte-order mark that some clients begin it with.
    """
    try:
        value: object = from_json(body.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"{what} is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be a JSON object.", code="invalid_json")
    return value
