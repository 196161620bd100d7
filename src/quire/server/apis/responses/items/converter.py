"""Items of `input` as messages of a chat: the reasoning, the text and the calls of one turn of the
assistant are items of their own, and become one message."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from quire.server.apis.protocol.caching import (
    AskedRetention,
    PromptCacheBreakpoint,
    longest,
    of_ttl,
)
from quire.server.apis.protocol.chat import MAX_PARTS
from quire.server.apis.protocol.drafts import MessageDraft, complete, read_call
from quire.server.apis.protocol.parse import invalid, missing, string_of, unsupported, validate
from quire.server.apis.protocol.unknown_fields import UnknownFields
from quire.server.apis.responses.items import item_fields as fields
from quire.server.apis.responses.items.custom_input import INPUT
from quire.server.apis.responses.items.sealed_reasoning import unsealed
from quire.server.apis.responses.items.tools import ADDITIONAL_TOOLS, ToolTable
from quire.server.generation.input import InputMessage, InputToolCall, Part, Role, TextPart

ENCRYPTED = "encrypted_content"
BREAKPOINT = "prompt_cache_breakpoint"
LOCAL_SHELL = "local_shell"
_TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
"""Types of parts that are text, and the field of each that holds it."""
_ROLES: Mapping[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
Item: TypeAlias = Mapping[str, object]


class ItemConverter:
    """Gathers messages.

    tools: name the functions of calls as the model knows them.
    unknown: notes what is left out.
    retention: the longest time for which a part wants what is before it to be kept.
    """

    def __init__(self, tools: ToolTable, unknown: UnknownFields) -> None:
        self.retention = AskedRetention(None, "")
        self._drafts: list[MessageDraft] = []
        self._tools = tools
        self._unknown = unknown
        self._shell_calls: dict[str, str] = {}
        self._readers: Mapping[str, Callable[[Item, str], None]] = {
            "message": self._add_message,
            "agent_message": self._add_agents_message,
            "function_call": self._add_function_call,
            "function_call_output": self._add_result,
            "custom_tool_call": self._add_custom_call,
            "custom_tool_call_output": self._add_result,
            "local_shell_call": self._add_shell_call,
            "local_shell_call_output": self._add_shell_result,
            "reasoning": self._add_reasoning,
            "compaction": self._add_summary,
            "compaction_summary": self._add_summary,
            "context_compaction": self._add_summary,
            ADDITIONAL_TOOLS: self._pass_over_tools,
        }

    def add_text(self, role: Role, text: str, where: str) -> None:
        """Add a message of text."""
        self._drafts.append(MessageDraft(role, where, [TextPart(text)]))

    def add_item(self, item: Item, where: str) -> None:
        """Add an item. Raises RequestError."""
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind is None:
            raise missing(f"{where}.type")
        if not isinstance(kind, str):
            raise invalid(f"{where}.type", "must be a string")
        read = self._readers.get(kind)
        if read is not None:
            read(item, where)
        elif kind in fields.HOSTED_ITEMS:
            self._unknown.leave_out(where)
        else:
            self._unknown.meet_kind(where)

    def messages(self) -> tuple[InputMessage, ...]:
        """Return the messages, which are complete. Raises RequestError for too many."""
        return complete(self._drafts, "input")

    def _turn(self) -> MessageDraft | None:
        """Return the assistant's message that goes on, None where there is none."""
        last = self._drafts[-1] if self._drafts else None
        return last if last is not None and last.role == "assistant" else None

    def _add_message(self, given: Item, where: str) -> None:
        item = self._unknown.known(given, fields.MESSAGE, where)
        role = _ROLES.get(string_of(item, "role", where))
        if role is None:
            raise invalid(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
        content = item.get("content")
        unsaid = role == "assistant" and content is None
        parts = [] if unsaid else self._parts_of(content, f"{where}.content")
        turn = self._turn() if role == "assistant" else None
        # Text goes into the turn of reasoning before it, and of calls whose results follow.
        if turn is not None and (turn.calls or not turn.parts):
            turn.parts += parts
        else:
            self._drafts.append(MessageDraft(role, where, parts or [TextPart("")]))

    def _add_agents_message(self, given: Item, where: str) -> None:
        """Add what another of the client's agents says to this one."""
        item = self._unknown.known(given, fields.AGENTS_MESSAGE, where)
        author = item.get("author")
        head = [TextPart(f"Message from {author}:")] if isinstance(author, str) else []
        parts = self._parts_of(item.get("content"), f"{where}.content")
        self._drafts.append(MessageDraft("user", where, [*head, *parts]))

    def _add_function_call(self, given: Item, where: str) -> None:
        item = self._unknown.known(given, fields.CALL, where)
        self._add_call(item, string_of(item, "arguments", where), "arguments", where)

    def _add_custom_call(self, given: Item, where: str) -> None:
        item = self._unknown.known(given, fields.CUSTOM_CALL, where)
        text = string_of(item, INPUT, where)
        self._add_call(item, {INPUT: text}, INPUT, where)

    def _add_call(self, item: Item, arguments: str | Item, key: str, where: str) -> None:
        """Add a call of a tool that the client offers, or offered once."""
        name, call_id = (string_of(item, key, where) for key in ("name", "call_id"))
        namespace = item.get("namespace")
        if namespace is not None and not isinstance(namespace, str):
            raise invalid(f"{where}.namespace", "must be a string")
        text = arguments if isinstance(arguments, str) else ""
        call = read_call(call_id, name, text, where, id_key="call_id", arguments_key=key)
        called = self._tools.name_of(name, namespace)
        given = call.arguments if isinstance(arguments, str) else arguments
        self._add_to_turn(InputToolCall(call_id, called, given, where))

    def _add_to_turn(self, call: InputToolCall) -> None:
        turn = self._turn()
        if turn is None:
            turn = MessageDraft("assistant", call.path)
            self._drafts.append(turn)
        turn.add_call(call)

    def _add_result(self, given: Item, where: str) -> None:
        item = self._unknown.known(given, fields.RESULT, where)
        self._add_output(item, string_of(item, "call_id", where), "call_id", where)

    def _add_output(self, item: Item, call_id: str, id_key: str, where: str) -> None:
        parts = self._parts_of(item.get("output"), f"{where}.output")
        result = MessageDraft("tool", where, parts)
        result.tool_call_id = call_id
        result.call_id_path = f"{where}.{id_key}"
        self._drafts.append(result)

    def _add_shell_call(self, given: Item, where: str) -> None:
        """Add a command that the client ran, as a call of a function of that name."""
        item = self._unknown.known(given, fields.SHELL_CALL, where)
        action, path = item.get("action"), f"{where}.action"
        if not isinstance(action, dict):
            raise invalid(path, "must be an object with a 'command'")
        shown = self._unknown.known(action, fields.SHELL_ACTION, path)
        command = shown.get("command")
        if not isinstance(command, list) or not all(isinstance(each, str) for each in command):
            raise invalid(f"{path}.command", "must be a list of strings")
        key = "id" if item.get("call_id") is None else "call_id"
        call_id = string_of(item, key, where)
        if isinstance(item.get("id"), str):
            self._shell_calls[str(item["id"])] = call_id
        read_call(call_id, LOCAL_SHELL, "", where, id_key=key, arguments_key="action")
        arguments = {name: each for name, each in shown.items() if name != "type" and each}
        self._add_to_turn(InputToolCall(call_id, LOCAL_SHELL, arguments, where))

    def _add_shell_result(self, given: Item, where: str) -> None:
        item = self._unknown.known(given, fields.SHELL_RESULT, where)
        key = "id" if item.get("call_id") is None else "call_id"
        name = string_of(item, key, where)
        self._add_output(item, self._shell_calls.get(name, name), key, where)

    def _add_reasoning(self, given: Item, where: str) -> None:
        item = self._unknown.known(given, fields.REASONING, where)
        path, content = f"{where}.{ENCRYPTED}", item.get(ENCRYPTED)
        if content is not None and not isinstance(content, str):
            raise invalid(path, "must be a string")
        text = None if content is None else unsealed(content)
        if content and text is None:
            self._unknown.leave_out(path)
        texts = self._thoughts(item, "content", where)
        if not texts:
            texts = [text] if text else self._thoughts(item, "summary", where)
        if texts:
            self._drafts.append(MessageDraft("assistant", where, reasoning=texts))

    def _thoughts(self, item: Item, field: str, where: str) -> list[str]:
        """Return the texts of a list of parts of reasoning. Raises RequestError."""
        given = item.get(field)
        if given is None:
            return []
        path = f"{where}.{field}"
        return [part.text for part in self._parts_of(given, path)] if given else []

    def _add_summary(self, given: Item, where: str) -> None:
        """Add a text that stands for the conversation before it. Raises RequestError for one that
        its maker alone can read: the answer would be to another conversation."""
        item = self._unknown.known(given, fields.COMPACTION, where)
        name = "content" if item.get("content") else "summary"
        parts = self._parts_of(item[name], f"{where}.{name}") if item.get(name) else []
        if not parts:
            how = "that is no text: another server alone can read it; send the items it stands for"
            raise unsupported(f"{where}.{ENCRYPTED}", how)
        self._drafts.append(MessageDraft("user", where, parts))

    def _pass_over_tools(self, given: Item, where: str) -> None:
        """Note what is unknown of an item that brought tools, which the table has by now."""
        self._unknown.known(given, fields.MORE_TOOLS, where)

    def _parts_of(self, content: object, where: str) -> list[Part]:
        """Return the parts of a content. Raises RequestError."""
        if isinstance(content, str):
            return [TextPart(content)]
        if not isinstance(content, list):
            raise invalid(where, "must be a string or a list of parts of text")
        if len(content) > MAX_PARTS:
            raise invalid(where, f"has {len(content)} parts, at most {MAX_PARTS} are allowed")
        parts = (self._part(part, f"{where}[{index}]") for index, part in enumerate(content))
        return [part for part in parts if part is not None]

    def _part(self, given: object, where: str) -> Part | None:
        """Return a part, None for one that another server alone can read."""
        if not isinstance(given, dict):
            raise invalid(where, "must be an object")
        if given.get("type") == ENCRYPTED:
            self._unknown.leave_out(where)
            return None
        name = _TEXT_PARTS.get(str(given.get("type")))
        if name is None:
            raise unsupported(f"{where}.type")
        self._note_breakpoint(given.get(BREAKPOINT), f"{where}.{BREAKPOINT}")
        part = self._unknown.known(given, fields.PART, where)
        text = part.get(name)
        if not isinstance(text, str):
            raise invalid(f"{where}.{name}", "must be a string")
        return TextPart(text)

    def _note_breakpoint(self, given: object, where: str) -> None:
        if given is None:
            return
        if not isinstance(given, dict):
            raise invalid(where, "must be an object")
        mark = validate(given, PromptCacheBreakpoint, at=where)
        self.retention = longest(self.retention, of_ttl(mark.ttl, f"{where}.ttl"))
