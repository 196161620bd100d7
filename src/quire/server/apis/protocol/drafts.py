"""Messages in the making, for APIs whose turns are items or blocks: several of these are one
message."""

from dataclasses import dataclass, field

from pydantic_core import PydanticCustomError

from quire.server.apis.protocol.chat import MAX_MESSAGES
from quire.server.apis.protocol.parse import error_at, invalid
from quire.server.apis.protocol.tools import (
    MAX_CALLS,
    MAX_ID_CHARS,
    MAX_NAME_CHARS,
    read_arguments,
)
from quire.server.generation.input import InputMessage, InputToolCall, Part, Role


@dataclass(slots=True)
class MessageDraft:
    """A message in the making, whose first item or block is at `path`."""

    role: Role
    path: str
    parts: list[Part] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[InputToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    call_id_path: str = ""

    def add_call(self, call: InputToolCall) -> None:
        """Add a call. Raises RequestError for one too many."""
        if len(self.calls) == MAX_CALLS:
            raise invalid(call.path, f"one message can hold {MAX_CALLS} calls")
        self.calls.append(call)

    def message(self) -> InputMessage:
        """Return the message, which is complete."""
        return InputMessage(
            self.role,
            tuple(self.parts),
            self.path,
            reasoning="\n".join(self.reasoning) or None,
            tool_calls=tuple(self.calls),
            tool_call_id=self.tool_call_id,
            call_id_path=self.call_id_path,
        )


def complete(drafts: list[MessageDraft], where: str) -> tuple[InputMessage, ...]:
    """Return the messages, which came in the field `where`. Raises RequestError for too many."""
    if len(drafts) > MAX_MESSAGES:
        raise invalid(where, f"has {len(drafts)} items, at most {MAX_MESSAGES} are allowed")
    return tuple(draft.message() for draft in drafts)


def read_call(
    call_id: str, name: str, arguments: str, path: str, *, id_key: str, arguments_key: str
) -> InputToolCall:
    """Return a call that an assistant made, whose arguments are JSON. Raises RequestError."""
    for key, value, most in ((id_key, call_id, MAX_ID_CHARS), ("name", name, MAX_NAME_CHARS)):
        if not 0 < len(value) <= most:
            raise invalid(f"{path}.{key}", f"must have 1 to {most} characters")
    try:
        return InputToolCall(call_id, name, read_arguments(arguments), path)
    except PydanticCustomError as error:
        raise error_at(error, f"{path}.{arguments_key}") from None
