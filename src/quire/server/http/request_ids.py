"""The ids that clients give their requests."""

import re
from collections.abc import Sequence

REQUEST_ID = "x-request-id"
MESSAGE_REQUEST_ID = "request-id"
"""The name that Anthropic's clients read, of answers of their API alone."""
_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")


def sent_request_id(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return the client's id, if there is one that can be written in a log and a header."""
    for name, value in headers:
        if name == REQUEST_ID.encode() and _SANE_ID.fullmatch(value):
            return value.decode("ascii")
    return None
