"""Edits of a conversation that clients ask Anthropic's server to make before its model reads it.
Quire makes none: chat templates leave out earlier reasoning themselves."""

from quire.server.apis.anthropic.protocol import ContextManagement
from quire.server.apis.protocol.parse import invalid, string_of
from quire.server.apis.protocol.unknown_fields import UnknownFields

_CLEAR_THINKING = "clear_thinking_20251015"
_EDITS = ("clear_tool_uses_20250919", _CLEAR_THINKING, "compact_20260112")


def check_edits(given: ContextManagement | None, unknown: UnknownFields) -> None:
    """Note the edits that are left out; one that keeps all thinking asks for nothing. Raises
    RequestError for an edit that is not known."""
    edits = [] if given is None or given.edits is None else given.edits
    for index, edit in enumerate(edits):
        where = f"context_management.edits[{index}]"
        kind = string_of(edit, "type", where)
        if kind not in _EDITS:
            raise invalid(f"{where}.type", f"must be {', '.join(map(repr, _EDITS))}")
        if kind != _CLEAR_THINKING or edit.get("keep") != "all":
            unknown.leave_out(where)
