"""The `cache_control` marks of one request: each ends a beginning of the prompt that the client
wants in the prefix cache, for five minutes or an hour."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from quire.server.apis.anthropic.protocol import CacheControl
from quire.server.apis.protocol.parse import invalid, validate

Ttl: TypeAlias = Literal["5m", "1h"]
SECONDS: Mapping[Ttl, float] = {"5m": 300.0, "1h": 3600.0}
DEFAULT: Ttl = "5m"
LONG: Ttl = "1h"


class CacheMark(NamedTuple):
    """A mark: the time for which it asks, and the path of the field that says so."""

    ttl: Ttl
    where: str


class CacheMarks:
    """Reads the marks of one request in their order: tools, system prompt, messages.

    longest: the first mark, since none after it asks for a longer time.
    """

    def __init__(self) -> None:
        self.longest: CacheMark | None = None
        self._last: CacheMark | None = None
        self._untaken: set[Ttl] = set()

    def read(self, holder: Mapping[str, object], where: str) -> None:
        """Read the mark of an object, if it has one. Raises RequestError for one that is none, or
        that asks for a longer time than one before it."""
        given = holder.get("cache_control")
        path = f"{where}.cache_control"
        if given is None:
            return
        if not isinstance(given, dict):
            raise invalid(path, "must be an object")
        self.add(validate(given, CacheControl, at=path), path)

    def add(self, mark: CacheControl, path: str) -> None:
        """Add the mark at a path. Raises RequestError where it asks for a longer time than one
        before it."""
        added = CacheMark(mark.ttl or DEFAULT, path if mark.ttl is None else f"{path}.ttl")
        last = self._last
        if last is not None and SECONDS[added.ttl] > SECONDS[last.ttl]:
            raise invalid(
                added.where,
                f"'{added.ttl}' comes after '{last.ttl}' at '{last.where}', and of tools, system "
                "and messages, in this order, those that are kept longer come first",
            )
        self._last = added
        self._untaken.add(added.ttl)
        self.longest = self.longest or added

    def take(self) -> set[Ttl]:
        """Return the times of the marks since the last call."""
        taken, self._untaken = self._untaken, set()
        return taken
