"""Items of `input` as messages of a chat: the reasoning, the text and the calls of one turn of the
assistant are items of their own, and become one message."""

from collections.abc import Mapping, Sequence

from quire.server.apis.protocol.chat import MAX_PARTS
from quire.server.apis.protocol.drafts import MessageDraft, complete, read_call
from quire.server.apis.protocol.parse import invalid, string_of, unknown, unsupported
from quire.server.generation.input import InputMessage, Part, Role, TextPart

_TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
}
"""Types of parts that are text, and the field of each that holds it."""
_MESSAGE_FIELDS = ("type", "role", "content", "id", "status", "phase")
_CALL_FIELDS = ("type", "call_id", "name", "arguments", "id", "status")
_RESULT_FIELDS = ("type", "call_id", "output", "id", "status")
_REASONING_FIELDS = ("type", "summary", "content", "encrypted_content", "id", "status")


_ROLES: Mapping[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


class ItemConverter:
    """Gathers messages."""

    def __init__(self) -> None:
        self._drafts: list[MessageDraft] = []

    def add_text(self, role: Role, text: str, where: str) -> None:
        """Add a message of text."""
        self._drafts.append(MessageDraft(role, where, [TextPart(text)]))

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

    def messages(self) -> tuple[InputMessage, ...]:
        """Return the messages, which are complete. Raises RequestError for too many."""
        return complete(self._drafts, "input")

    def _turn(self) -> MessageDraft | None:
        """Return the assistant's message that goes on, None where there is none."""
        last = self._drafts[-1] if self._drafts else None
        return last if last is not None and last.role == "assistant" else None

    def _add_message(self, item: Mapping[str, object], where: str) -> None:
        _check_fields(item, _MESSAGE_FIELDS, where)
        role = _ROLES.get(string_of(item, "role", where))
        if role is None:
            raise invalid(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
        content = item.get("content")
        unsaid = role == "assistant" and content is None
        parts = [] if unsaid else _parts_of(content, f"{where}.content")
        turn = self._turn() if role == "assistant" else None
        # Text goes into the turn of reasoning before it, and of calls whose results follow.
        if turn is not None and (turn.calls or not turn.parts):
            turn.parts += parts
        else:
            self._drafts.append(MessageDraft(role, where, parts or [TextPart("")]))

    def _add_call(self, item: Mapping[str, object], where: str) -> None:
        _check_fields(item, _CALL_FIELDS, where)
        name, arguments, call_id = (
            string_of(item, key, where) for key in ("name", "arguments", "call_id")
        )
        call = read_call(
            call_id,
            name,
            arguments,
            where,
            id_key="call_id",
            arguments_key="arguments",
        )
        turn = self._turn()
        if turn is None:
            turn = MessageDraft("assistant", where)
            self._drafts.append(turn)
        turn.add_call(call)

    def _add_result(self, item: Mapping[str, object], where: str) -> None:
        _check_fields(item, _RESULT_FIELDS, where)
        result = MessageDraft("tool", where, _parts_of(item.get("output"), f"{where}.output"))
        result.tool_call_id = string_of(item, "call_id", where)
        result.call_id_path = f"{where}.call_id"
        self._drafts.append(result)

    def _add_reasoning(self, item: Mapping[str, object], where: str) -> None:
        _check_fields(item, _REASONING_FIELDS, where)
        field = "content" if item.get("content") else "summary"
        parts = item.get(field) or []
        if not parts and item.get("encrypted_content") is not None:
            raise unsupported(f"{where}.encrypted_content")
        texts = [_thought(each) for each in parts] if isinstance(parts, list) else [None]
        if None in texts:
            raise invalid(f"{where}.{field}", "must be a list of parts with a 'text'")
        if texts:
            reasoning = [text for text in texts if text is not None]
            self._drafts.append(MessageDraft("assistant", where, reasoning=reasoning))


def _thought(part: object) -> str | None:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def _check_fields(item: Mapping[str, object], known: Sequence[str], where: str) -> None:
    name = next((str(key) for key in item if key not in known), None)
    if name is not None and item[name] is not None:
        raise unknown(f"{where}.{name[:100]}")


def _parts_of(content: object, where: str) -> list[Part]:
    """Return the parts of a content. Raises RequestError."""
    if isinstance(content, str):
        return [TextPart(content)]
    if not isinstance(content, list):
        raise invalid(where, "must be a string or a list of parts of text")
    if len(content) > MAX_PARTS:
        raise invalid(where, f"has {len(content)} parts, at most {MAX_PARTS} are allowed")
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _part(part: object, where: str) -> Part:
    if not isinstance(part, dict):
        raise invalid(where, "must be an object")
    name = _TEXT_PARTS.get(str(part.get("type")))
    if name is None:
        raise unsupported(f"{where}.type")
    text = part.get(name)
    if not isinstance(text, str):
        raise invalid(f"{where}.{name}", "must be a string")
    return TextPart(text)
