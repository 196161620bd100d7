"""Reads the parameters of a URL: those that a route knows, and no others."""

from collections.abc import Mapping

from starlette.requests import Request

from quire.server.errors import RequestError

MAX_SHOWN_CHARS = 64


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
