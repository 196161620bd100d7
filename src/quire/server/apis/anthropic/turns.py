"""Turns of a conversation as messages of a chat: the results of tools, which are blocks of a user's
turn, become messages of their own, and turns of one role in a row become one."""

import json
from collections.abc import Callable, Mapping, Sequence

from quire.server.apis.anthropic.protocol import CacheControl
from quire.server.apis.protocol.chat import MAX_PARTS
from quire.server.apis.protocol.drafts import MessageDraft, complete, read_call
from quire.server.apis.protocol.parse import (
    invalid,
    missing,
    string_of,
    unknown,
    unsupported,
    validate,
)
from quire.server.generation.input import InputMessage, Role, TextPart

_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_BLOCK_ROLES: Mapping[str, tuple[str, ...]] = {
    "text": ("user", "assistant", "system"),
    "tool_result": ("user",),
    "tool_use": ("assistant",),
    "thinking": ("assistant",),
    "redacted_thinking": ("assistant",),
}
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "text": ("type", "text", "cache_control"),
    "tool_result": ("type", "tool_use_id", "content", "is_error", "cache_control"),
    "tool_use": ("type", "id", "name", "input", "cache_control"),
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
}
_ASKING_NOTHING: Mapping[str, tuple[object, ...]] = {
    "citations": (None, []),
    "caller": (None, {"type": "direct"}),
    "toolset_name": (None,),
}
"""Fields of blocks on which Quire does not act, and the values that ask for nothing."""
FAILED = "Error: "
"""Begins the result of a tool that failed: templates have no other word for it."""


class TurnConverter:
    """Gathers messages; `no_effect` are the paths of what is taken and changes nothing."""

    def __init__(self) -> None:
        self._drafts: list[MessageDraft] = []
        self.no_effect: list[str] = []
        self._where = ""
        self._adders: Mapping[str, Callable[[Mapping[str, object], Role, str], None]] = {
            "text": self._add_text,
            "tool_result": self._add_result,
            "tool_use": self._add_call,
            "thinking": self._add_thinking,
            "redacted_thinking": self._add_redacted,
        }

    def add_system(self, content: object, where: str) -> None:
        """Add what the model is told first. Raises RequestError."""
        self._add_content("system", content, where, where)

    def add_turn(self, turn: Mapping[str, object], where: str) -> None:
        """Add a turn. Raises RequestError."""
        check_fields(turn, ("role", "content"), where)
        role = _ROLES.get(string_of(turn, "role", where))
        if role is None:
            raise invalid(f"{where}.role", "must be 'user', 'assistant' or 'system'")
        self._add_content(role, turn.get("content"), f"{where}.content", where)

    def messages(self) -> tuple[InputMessage, ...]:
        """Return the messages, which are complete. Raises RequestError for too many."""
        return complete(self._drafts, "messages")

    def _add_content(self, role: Role, content: object, path: str, where: str) -> None:
        self._where = where
        if isinstance(content, str):
            self._add_text({"text": content}, role, where)
            return
        for block, block_path in blocks_of(content, path):
            kind = block_kind(block, block_path)
            if role not in _BLOCK_ROLES[kind]:
                raise invalid(
                    f"{block_path}.type", f"a message of the role '{role}' has no block '{kind}'"
                )
            self._adders[kind](block, role, block_path)

    def _turn(self, role: Role) -> MessageDraft:
        """Return the message that goes on with this role, or a new one."""
        if not self._drafts or self._drafts[-1].role != role:
            self._drafts.append(MessageDraft(role, self._where))
        return self._drafts[-1]

    def _add_text(self, block: Mapping[str, object], role: Role, where: str) -> None:
        text = string_of(block, "text", where)
        self._turn(role).parts.append(TextPart(text))

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
        text = "" if content is None else _text_of(content, f"{where}.content")
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


def blocks_of(content: object, path: str) -> list[tuple[Mapping[str, object], str]]:
    """Return the blocks of a content with their paths. Raises RequestError."""
    if content is None:
        raise missing(path)
    if not isinstance(content, list) or not content:
        raise invalid(path, "must be a string or a list of blocks that is not empty")
    if len(content) > MAX_PARTS:
        raise invalid(path, f"has {len(content)} blocks, at most {MAX_PARTS} are allowed")
    blocks: list[tuple[Mapping[str, object], str]] = []
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            where = f"{path}[{index}]"
            raise invalid(where, "must be an object")
        blocks.append((block, f"{path}[{index}]"))
    return blocks


def block_kind(block: Mapping[str, object], where: str) -> str:
    """Return the type of a block whose fields are all known. Raises RequestError."""
    kind = string_of(block, "type", where)
    if kind not in _FIELDS:
        raise unsupported(f"{where}.type")
    check_fields(block, _FIELDS[kind], where)
    check_cache_control(block, where)
    return kind


def check_cache_control(holder: Mapping[str, object], where: str) -> None:
    """Raise RequestError for a `cache_control` that is none."""
    given = holder.get("cache_control")
    path = f"{where}.cache_control"
    if given is None:
        return
    if not isinstance(given, dict):
        raise invalid(path, "must be an object")
    validate(given, CacheControl, at=path)


def check_fields(holder: Mapping[str, object], known: Sequence[str], where: str) -> None:
    """Raise RequestError for a field that is not known, or that asks for what Quire cannot do."""
    for name, value in holder.items():
        if name in known:
            continue
        path = f"{where}.{str(name)[:100]}"
        passing = _ASKING_NOTHING.get(name)
        if passing is not None and value not in passing:
            raise unsupported(path)
        if passing is None and value is not None:
            raise unknown(path)


def _text_of(content: object, path: str) -> str:
    """Return the text of a result. Raises RequestError."""
    if isinstance(content, str):
        return content
    if content == []:
        return ""
    texts: list[str] = []
    for block, where in blocks_of(content, path):
        if block_kind(block, where) != "text":
            raise unsupported(f"{where}.type")
        texts.append(string_of(block, "text", where))
    return "\n".join(texts)


def _arguments(block: Mapping[str, object], where: str) -> str:
    """Return the input of a call as JSON. Raises RequestError."""
    given, path = block.get("input"), f"{where}.input"
    if not isinstance(given, dict):
        raise invalid(path, "must be an object")
    try:
        return json.dumps(given, ensure_ascii=False)
    except ValueError as error:  # an integer of thousands of digits
        raise invalid(path, str(error)) from None
