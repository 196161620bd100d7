"""Reads the parameters of a URL: those that a route knows, and no others."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from starlette.requests import Request

from quire.server.errors import RequestError

MAX_SHOWN_CHARS = 64
MAX_SHOWN_ID_CHARS = 128
MAX_DIGITS = 10


class ListedObject(Protocol):
    """Something that a list shows, and that is asked for by its id."""

    @property
    def id(self) -> str:
        """Return the id, which no other in the list has."""


Listed = TypeVar("Listed", bound=ListedObject)


def query_of(request: Request, *known: str) -> Mapping[str, str]:
    """Return the parameters of the URL. Raises RequestError for one that is unknown."""
    unknown = next((name for name in request.query_params if name not in known), None)
    if unknown is not None:
        shown = unknown[:MAX_SHOWN_CHARS]
        raise RequestError(
            f"Unknown parameter '{shown}'; known are {', '.join(known)}.",
            param=shown,
            code="unknown_parameter",
        )
    return request.query_params


def flag_of(query: Mapping[str, str], name: str) -> bool:
    """Return a parameter that is `true` or `false`, which it is if left out. Raises
    RequestError."""
    given = query.get(name, "false")
    if given not in ("true", "false"):
        shown = given[:MAX_SHOWN_CHARS]
        raise RequestError(f"'{name}' is 'true' or 'false', not {shown!r}.", param=name)
    return given == "true"


def number_of(query: Mapping[str, str], name: str) -> int:
    """Return a parameter that is a number, 0 if it is left out. Raises RequestError."""
    given = query.get(name, "0")
    if not (given.isascii() and given.isdigit() and len(given) < MAX_DIGITS):
        shown = given[:MAX_SHOWN_CHARS]
        raise RequestError(f"'{name}' must be a number from 0, not {shown!r}.", param=name)
    return int(given)


def limit_of(query: Mapping[str, str], default: int, most: int) -> int:
    """Return how many items a page has at most. Raises RequestError."""
    given = query.get("limit", str(default))
    if not (given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= most):
        raise RequestError(f"'limit' must be a number from 1 to {most}.", param="limit")
    return int(given)


def is_newest_first(query: Mapping[str, str]) -> bool:
    """Return whether a list begins with its newest item, as it does if nothing is said. Raises
    RequestError."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError("'order' must be 'asc' or 'desc'.", param="order")
    return order == "desc"


def page_of(
    found: Sequence[Listed], query: Mapping[str, str], limit: int
) -> tuple[Sequence[Listed], bool]:
    """Return the items behind `after`, and whether there are more. Raises RequestError."""
    after, begin = query.get("after"), 0
    if after is not None:
        ids = [each.id for each in found]
        if after not in ids:
            raise RequestError(
                f"'after' is {after[:MAX_SHOWN_ID_CHARS]!r}, which is not in the list.",
                param="after",
            )
        begin = ids.index(after) + 1
    return found[begin : begin + limit], begin + limit < len(found)
