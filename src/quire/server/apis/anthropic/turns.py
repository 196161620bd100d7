"""Turns of a conversation as messages of a chat: the results of tools, which are blocks of a user's
turn, become messages of their own, and turns of one role in a row become one."""

import json
from collections.abc import Callable, Mapping

from quire.server.apis.anthropic.cache_marks import LONG, CacheMarks
from quire.server.apis.anthropic.fields import LEFT_OUT, TURN, BlockReader
from quire.server.apis.anthropic.protocol import CacheControl
from quire.server.apis.anthropic.shown_text import SHOWN, text_of, texts_in
from quire.server.apis.protocol.drafts import MessageDraft, complete, read_call
from quire.server.apis.protocol.parse import invalid, string_of
from quire.server.apis.protocol.unknown_fields import UnknownFields
from quire.server.generation.input import InputMessage, Role, TextPart

_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_EVERYONE = ("user", "assistant", "system")
_BLOCK_ROLES: Mapping[str, tuple[str, ...]] = {
    "text": _EVERYONE,
    "document": ("user",),
    "search_result": ("user",),
    "compaction": ("assistant",),
    "tool_result": ("user",),
    "tool_use": ("assistant",),
    "thinking": ("assistant",),
    "redacted_thinking": ("assistant",),
}
"""Blocks that turns hold, and whose."""
_IN_RESULTS = ("text", "document", "search_result", "tool_reference")
BILLING = "x-anthropic-billing-header:"
"""Begins a block of the system prompt that is a header of the client."""
FAILED = "Error: "
"""Begins the result of a tool that failed: templates have no other word for it."""


class TurnConverter:
    """Gathers messages, which come after what had the `marks` until now.

    no_effect: the paths of what is taken and changes nothing.
    num_cached: the messages up to the last that has a `cache_control`, 0 where only tools have one;
        None where nothing has one.
    num_cached_long: the same of those that ask for an hour.
    """

    def __init__(self, unknown: UnknownFields, marks: CacheMarks) -> None:
        self._drafts: list[MessageDraft] = []
        self._reader = BlockReader(unknown, marks)
        self.no_effect: list[str] = []
        of_tools = marks.longest
        self.num_cached = None if of_tools is None else 0
        self.num_cached_long = 0 if of_tools is not None and of_tools.ttl == LONG else None
        marks.take()
        self._where = ""
        self._adders: Mapping[str, Callable[[Mapping[str, object], Role, str], None]] = {
            "tool_result": self._add_result,
            "tool_use": self._add_call,
            "thinking": self._add_thinking,
            "redacted_thinking": self._add_redacted,
        }

    def add_system(self, content: object, where: str) -> None:
        """Add the system prompt without the version of the client, which Claude Code begins it with
        and Anthropic keeps from its models: no two conversations would have a beginning in common.
        Raises RequestError."""
        if isinstance(content, str):
            self._add_content("system", content, where, where)
            return
        self._where = where
        for block, kind, path in self._reader.blocks(content, where):
            if str(block.get("text")).startswith(BILLING):
                self.no_effect.append(path)
            else:
                self._add_block(block, kind, "system", path)
            self._read_mark(block, path)

    def add_turn(self, turn: Mapping[str, object], where: str) -> None:
        """Add a turn. Raises RequestError."""
        turn = self._reader.unknown.known(turn, TURN, where)
        role = _ROLES.get(string_of(turn, "role", where))
        if role is None:
            raise invalid(f"{where}.role", "must be 'user', 'assistant' or 'system'")
        self._add_content(role, turn.get("content"), f"{where}.content", where)
        self._read_mark(turn, where)

    def add_mark(self, mark: CacheControl, where: str) -> None:
        """Add a mark behind all messages. Raises RequestError."""
        self._reader.marks.add(mark, where)
        self._note_marks()

    def messages(self) -> tuple[InputMessage, ...]:
        """Return the messages, which are complete. Raises RequestError for too many."""
        return complete(self._drafts, "messages")

    def _add_content(self, role: Role, content: object, path: str, where: str) -> None:
        self._where = where
        if isinstance(content, str):
            self._turn(role).parts.append(TextPart(content))
            return
        for block, kind, block_path in self._reader.blocks(content, path):
            self._add_block(block, kind, role, block_path)
            self._read_mark(block, block_path)

    def _add_block(self, block: Mapping[str, object], kind: str, role: Role, where: str) -> None:
        if kind in LEFT_OUT:
            self._reader.leave_out_or_refuse(kind, where)
            self._turn(role)
            return
        if role not in _BLOCK_ROLES.get(kind, ()):
            raise invalid(f"{where}.type", f"a message of the role '{role}' has no block '{kind}'")
        if kind in SHOWN:
            self._turn(role).parts.append(TextPart(text_of(block, kind, where, self._reader)))
        else:
            self._adders[kind](block, role, where)

    def _read_mark(self, holder: Mapping[str, object], where: str) -> None:
        self._reader.marks.read(holder, where)
        self._note_marks()

    def _note_marks(self) -> None:
        """Note where the messages end that the marks since the last call are in."""
        ttls = self._reader.marks.take()
        if ttls:
            self.num_cached = len(self._drafts)
        if LONG in ttls:
            self.num_cached_long = len(self._drafts)

    def _turn(self, role: Role) -> MessageDraft:
        """Return the message that goes on with this role, or a new one."""
        if not self._drafts or self._drafts[-1].role != role:
            self._drafts.append(MessageDraft(role, self._where))
        return self._drafts[-1]

    def _add_call(self, block: Mapping[str, object], role: Role, where: str) -> None:
        call = read_call(
            string_of(block, "id", where),
            string_of(block, "name", where),
            _arguments(block, where),
            where,
            id_key="id",
            arguments_key="input",
        )
        self._turn(role).add_call(call)

    def _add_result(self, block: Mapping[str, object], role: Role, where: str) -> None:
        call_id, content = string_of(block, "tool_use_id", where), block.get("content")
        failed = block.get("is_error")
        if not isinstance(failed, bool | None):
            raise invalid(f"{where}.is_error", "must be a boolean")
        texts = (
            []
            if content is None
            else texts_in(content, f"{where}.content", self._reader, _IN_RESULTS)
        )
        text = "\n".join(texts)
        result = MessageDraft("tool", where, [TextPart(f"{FAILED}{text}" if failed else text)])
        result.tool_call_id, result.call_id_path = call_id, f"{where}.tool_use_id"
        self._drafts.append(result)

    def _add_thinking(self, block: Mapping[str, object], role: Role, where: str) -> None:
        thinking = string_of(block, "thinking", where)
        self._turn(role).reasoning.append(thinking)

    def _add_redacted(self, block: Mapping[str, object], role: Role, where: str) -> None:
        string_of(block, "data", where)
        self._turn(role)
        self.no_effect.append(where)


def _arguments(block: Mapping[str, object], where: str) -> str:
    """Return the input of a call as JSON. Raises RequestError."""
    given, path = block.get("input"), f"{where}.input"
    if not isinstance(given, dict):
        raise invalid(path, "must be an object")
    try:
        return json.dumps(given, ensure_ascii=False)
    except ValueError as error:  # an integer of thousands of digits
        raise invalid(path, str(error)) from None
