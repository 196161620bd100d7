"""Turns of a conversation as messages of a chat: the results of tools, which are blocks of a user's
turn, become messages of their own, and turns of one role in a row become one."""

import json
from collections.abc import Callable, Mapping, Sequence

from quire.server.apis.anthropic.protocol import CacheControl
from quire.server.errors import RequestError
from quire.server.generation.protocol.chat import MAX_PARTS
from quire.server.generation.protocol.parse import string_of, validate

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


def unsupported(where: str) -> RequestError:
    """Return the error for what Quire cannot do."""
    return RequestError(
        f"Quire does not support '{where}' yet.", param=where, code="unsupported_parameter"
    )


class Conversation:
    """Gathers messages; `origins` are the paths of the turns and blocks by those of what they
    became, `no_effect` the paths of what is taken and changes nothing."""

    def __init__(self) -> None:
        self.messages: list[dict[str, object]] = []
        self.origins: dict[str, str] = {}
        self.no_effect: list[str] = []
        self._where = ""
        self._thoughts: dict[int, list[str]] = {}
        self._adders: Mapping[str, Callable[[Mapping[str, object], str, str], None]] = {
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
        role = string_of(turn, "role", where)
        if role not in ("user", "assistant", "system"):
            raise RequestError(
                f"Invalid '{where}.role': must be 'user', 'assistant' or 'system'.",
                param=f"{where}.role",
            )
        self._add_content(role, turn.get("content"), f"{where}.content", where)

    def end(self) -> None:
        """Complete the messages, which nothing is added to any more."""
        for index, thoughts in self._thoughts.items():
            self.messages[index]["reasoning_content"] = "\n".join(thoughts)

    def _add_content(self, role: str, content: object, path: str, where: str) -> None:
        self._where = where
        if isinstance(content, str):
            self._add_text({"text": content}, role, where)
            return
        for block, block_path in blocks_of(content, path):
            kind = block_kind(block, block_path)
            if role not in _BLOCK_ROLES[kind]:
                raise RequestError(
                    f"Invalid '{block_path}.type': a message of the role '{role}' has no block "
                    f"'{kind}'.",
                    param=f"{block_path}.type",
                )
            self._adders[kind](block, role, block_path)

    def _turn(self, role: str) -> dict[str, object]:
        """Return the message that goes on with this role, or a new one."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.origins[f"messages[{len(self.messages)}]"] = self._where
            self.messages.append({"role": role, "content": []})
        return self.messages[-1]

    def _add_text(self, block: Mapping[str, object], role: str, where: str) -> None:
        text = string_of(block, "text", where)
        _append(self._turn(role), "content", {"type": "text", "text": text})

    def _add_call(self, block: Mapping[str, object], role: str, where: str) -> None:
        called = {"name": string_of(block, "name", where), "arguments": _arguments(block, where)}
        call = {"id": string_of(block, "id", where), "type": "function", "function": called}
        index = _append(self._turn(role), "tool_calls", call)
        self.origins[f"messages[{len(self.messages) - 1}].tool_calls[{index}]"] = where

    def _add_result(self, block: Mapping[str, object], role: str, where: str) -> None:
        call_id, content = string_of(block, "tool_use_id", where), block.get("content")
        failed = block.get("is_error")
        if not isinstance(failed, bool | None):
            path = f"{where}.is_error"
            raise RequestError(f"Invalid '{path}': must be a boolean.", param=path)
        text = "" if content is None else _text_of(content, f"{where}.content")
        self.origins[f"messages[{len(self.messages)}]"] = where
        content = f"{FAILED}{text}" if failed else text
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _add_thinking(self, block: Mapping[str, object], role: str, where: str) -> None:
        thinking = string_of(block, "thinking", where)
        self._turn(role)
        self._thoughts.setdefault(len(self.messages) - 1, []).append(thinking)

    def _add_redacted(self, block: Mapping[str, object], role: str, where: str) -> None:
        string_of(block, "data", where)
        self._turn(role)
        self.no_effect.append(where)


def _append(message: dict[str, object], field: str, value: object) -> int:
    """Append to a list of a message; return the index of what was appended."""
    values = message.setdefault(field, [])
    assert isinstance(values, list)
    values.append(value)
    return len(values) - 1


def blocks_of(content: object, path: str) -> list[tuple[Mapping[str, object], str]]:
    """Return the blocks of a content with their paths. Raises RequestError."""
    if content is None:
        raise RequestError(
            f"Missing required field '{path}'.", param=path, code="missing_required_parameter"
        )
    if not isinstance(content, list) or not content:
        message = f"Invalid '{path}': must be a string or a list of blocks that is not empty."
        raise RequestError(message, param=path)
    if len(content) > MAX_PARTS:
        raise RequestError(
            f"Invalid '{path}': has {len(content)} blocks, at most {MAX_PARTS} are allowed.",
            param=path,
        )
    blocks: list[tuple[Mapping[str, object], str]] = []
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            where = f"{path}[{index}]"
            raise RequestError(f"Invalid '{where}': must be an object.", param=where)
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
        raise RequestError(f"Invalid '{path}': must be an object.", param=path)
    try:
        validate(given, CacheControl)
    except RequestError as error:
        error.message = error.message.replace(f"'{error.param}'", f"'{path}.{error.param}'", 1)
        error.param = f"{path}.{error.param}"
        raise


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
            raise RequestError(f"Unknown field '{path}'.", param=path, code="unknown_parameter")


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
        raise RequestError(f"Invalid '{path}': must be an object.", param=path)
    try:
        return json.dumps(given, ensure_ascii=False)
    except ValueError as error:  # an integer of thousands of digits
        raise RequestError(f"Invalid '{path}': {error}.", param=path) from None
