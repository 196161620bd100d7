"""Unknown fields of histories: of messages, parts, tools, calls and items, which clients bring from
other servers. They are left out and reported, or refused."""

from collections.abc import Mapping
from typing import NamedTuple

from quire.server.errors import RequestError
from quire.server.models.input_context import InputContext
from quire.server.suggestion import closest

MAX_NOTED = 64
"""Paths that are kept of one request; of more the number is."""
MAX_NAME_CHARS = 100
NOTHING: tuple[object, ...] = (None, "", [], {})
"""Values that ask for nothing."""


class Place(NamedTuple):
    """A kind of object in a history: its fields, and those of other servers that are taken and kept
    out of the prompt."""

    fields: frozenset[str]
    kept_out: frozenset[str] = frozenset()


class ForeignField(NamedTuple):
    """A field that clients send since another server, the `source`, has it. `use` says what it
    means here; None: it is kept out of the prompt."""

    place: str
    name: str
    source: str
    use: str | None


class UnknownFields:
    """Gathers the paths of a request's unknown fields; where it `refuses`, the first is an
    error."""

    def __init__(self, *, refuses: bool) -> None:
        self._refuses = refuses
        self._noted: list[str] = []
        self._num_more = 0

    @property
    def ignored(self) -> tuple[str, ...]:
        """The paths of what was left out, and after MAX_NOTED of them the number of others."""
        more = (f"{self._num_more} more",) if self._num_more else ()
        return (*self._noted, *more)

    def known(self, holder: Mapping[str, object], place: Place, where: str) -> Mapping[str, object]:
        """Return the fields of an object, at the path `where`, that its place knows. An unknown
        field that is empty asks for nothing. Raises RequestError."""
        if holder.keys() <= place.fields:
            return holder
        kept = {name: value for name, value in holder.items() if name in place.fields}
        for name, value in holder.items():
            if name not in place.fields and name not in place.kept_out and value not in NOTHING:
                self._meet(name, place, where)
        return kept

    def leave_out(self, path: str) -> None:
        """Note something else that is left out, a tool, an item or a block."""
        if len(self._noted) < MAX_NOTED:
            self._noted.append(path)
        else:
            self._num_more += 1

    def meet_kind(self, where: str) -> None:
        """Leave out an object, at a path, whose type is not known. Raises RequestError where such
        are refused."""
        if self._refuses:
            path = f"{where}.type"
            raise RequestError(f"Unknown '{path}'.", param=path, code="unknown_parameter")
        self.leave_out(where)

    def _meet(self, name: str, place: Place, where: str) -> None:
        path = f"{where}.{name[:MAX_NAME_CHARS]}"
        if not self._refuses:
            self.leave_out(path)
            return
        meant = closest(name, place.fields)
        hint = f" Did you mean '{where}.{meant}'?" if meant else ""
        raise RequestError(f"Unknown field '{path}'.{hint}", param=path, code="unknown_parameter")


def unknown_fields(context: InputContext) -> UnknownFields:
    """Return what gathers the unknown fields of one request, as the server is configured."""
    return UnknownFields(refuses=context.limits.refuses_unknown_fields)
