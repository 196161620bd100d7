"""Items of `input` as messages of a chat: the reasoning, the text and the calls of one turn of the
assistant are items of their own, and become one message."""

from collections.abc import Mapping, Sequence

from quire.server.errors import RequestError
from quire.server.generation.protocol.parse import string_of

_TEXT_PARTS = ("input_text", "output_text", "text")
_MESSAGE_FIELDS = ("type", "role", "content", "id", "status", "phase")
_CALL_FIELDS = ("type", "call_id", "name", "arguments", "id", "status")
_RESULT_FIELDS = ("type", "call_id", "output", "id", "status")
_REASONING_FIELDS = ("type", "summary", "content", "encrypted_content", "id", "status")


def unsupported(where: str, how: str = "yet") -> RequestError:
    """Return the error for what Quire cannot do, or not `how` it is asked."""
    return RequestError(
        f"Quire does not support '{where}' {how}.", param=where, code="unsupported_parameter"
    )


class Conversation:
    """Gathers messages; `origins` are the paths of the items by those of what they became."""

    def __init__(self) -> None:
        self.messages: list[dict[str, object]] = []
        self.origins: dict[str, str] = {}

    def add_text(self, role: str, content: object, where: str) -> None:
        """Add a message of text."""
        self._add({"role": role, "content": content}, where)

    def add_item(self, item: Mapping[str, object], where: str) -> None:
        """Add an item. Raises RequestError."""
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "message":
            self._add_message(item, where)
        elif kind == "function_call":
            self._add_call(item, where)
        elif kind == "function_call_output":
            self._add_result(item, where)
        elif kind == "reasoning":
            self._add_reasoning(item, where)
        else:
            raise unsupported(f"{where}.type")

    def _add(self, message: dict[str, object], where: str) -> None:
        self.origins[f"messages[{len(self.messages)}]"] = where
        self.messages.append(message)

    def _turn(self) -> dict[str, object] | None:
        """Return the assistant's message that goes on, None where there is none."""
        last = self.messages[-1] if self.messages else {}
        return last if last.get("role") == "assistant" else None

    def _add_message(self, item: Mapping[str, object], where: str) -> None:
        _check_fields(item, _MESSAGE_FIELDS, where)
        content = _text_of(item.get("content"), f"{where}.content")
        turn = self._turn() if item.get("role") == "assistant" else None
        if turn is not None and "content" not in turn:
            turn["content"] = content
        elif turn is not None and "tool_calls" in turn:  # text after calls whose results follow
            turn["content"] = [*_parts(turn["content"]), *_parts(content)]
        else:
            self.add_text(string_of(item, "role", where), content, where)

    def _add_call(self, item: Mapping[str, object], where: str) -> None:
        _check_fields(item, _CALL_FIELDS, where)
        called = {name: string_of(item, name, where) for name in ("name", "arguments")}
        call = {"id": string_of(item, "call_id", where), "type": "function", "function": called}
        turn = self._turn()
        if turn is None:
            turn = {"role": "assistant"}
            self._add(turn, where)
        calls = turn.setdefault("tool_calls", [])
        assert isinstance(calls, list)
        self.origins[f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}]"] = where
        calls.append(call)

    def _add_result(self, item: Mapping[str, object], where: str) -> None:
        _check_fields(item, _RESULT_FIELDS, where)
        output = _text_of(item.get("output"), f"{where}.output")
        call_id = string_of(item, "call_id", where)
        self._add({"role": "tool", "tool_call_id": call_id, "content": output}, where)

    def _add_reasoning(self, item: Mapping[str, object], where: str) -> None:
        _check_fields(item, _REASONING_FIELDS, where)
        field = "content" if item.get("content") else "summary"
        parts = item.get(field) or []
        if not parts and item.get("encrypted_content") is not None:
            raise unsupported(f"{where}.encrypted_content")
        texts = (
            [part.get("text") for part in parts if isinstance(part, dict)]
            if isinstance(parts, list)
            else [None]
        )
        if any(not isinstance(text, str) for text in texts):
            message = f"Invalid '{where}.{field}': must be a list of parts with a 'text'."
            raise RequestError(message, param=f"{where}.{field}")
        if texts:
            reasoning = "\n".join(map(str, texts))
            self._add({"role": "assistant", "reasoning_content": reasoning}, where)


def _parts(content: object) -> list[object]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _check_fields(item: Mapping[str, object], known: Sequence[str], where: str) -> None:
    unknown = next((str(key) for key in item if key not in known), None)
    if unknown is not None and item[unknown] is not None:
        path = f"{where}.{unknown[:100]}"
        raise RequestError(f"Unknown field '{path}'.", param=path, code="unknown_parameter")


def _text_of(content: object, where: str) -> object:
    """Return a content as that of a chat's message. Raises RequestError."""
    if not isinstance(content, list):
        return content
    parts: list[object] = []
    for index, part in enumerate(content):
        path = f"{where}[{index}]"
        if not isinstance(part, dict):
            raise RequestError(f"Invalid '{path}': must be an object.", param=path)
        if part.get("type") == "refusal":
            parts.append({"type": "text", "text": part.get("refusal")})
        elif part.get("type") in _TEXT_PARTS:
            parts.append({"type": "text", "text": part.get("text")})
        else:
            raise unsupported(f"{path}.type")
    return parts
