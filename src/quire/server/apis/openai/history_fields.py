"""Fields of a chat's messages, parts, tools and calls, before they are checked: those that clients
bring from other servers are left out."""

from collections.abc import Mapping

from quire.server.apis.protocol.chat import PART_TEXTS, REASONING_LISTS, Message
from quire.server.apis.protocol.tools import CalledFunction, Function, Tool, ToolCall
from quire.server.apis.protocol.unknown_fields import ForeignField, Place, UnknownFields

_MARKS = "LiteLLM, OpenRouter and Cline send Anthropic's mark to OpenAI's API"

FOREIGN_FIELDS = (
    ForeignField("message", "reasoning_details", "OpenRouter", "the reasoning, without another"),
    ForeignField("message", "thinking_blocks", "LiteLLM", "the reasoning, without another"),
    ForeignField("message", "refusal", "OpenAI", "the content, without another"),
    ForeignField("message", "prefix", "DeepSeek, Mistral", "the answer goes on with this message"),
    ForeignField("message", "annotations", "OpenAI: citations", None),
    ForeignField("message", "cache_control", _MARKS, None),
    ForeignField("message", "extra_content", "Google: signatures of thoughts", None),
    ForeignField("message", "id", "Vercel's SDK, Zed", None),
    ForeignField("message", "parsed", "OpenAI's SDK: `parse`", None),
    ForeignField("message", "provider_specific_fields", "LiteLLM", None),
    ForeignField("part", "annotations", "OpenAI: citations", None),
    ForeignField("part", "cache_control", _MARKS, None),
    ForeignField("part", "extra_content", "Google", None),
    ForeignField("part", "prompt_cache_breakpoint", "OpenAI: marks of its cache", None),
    ForeignField("part", "provider_specific_fields", "LiteLLM", None),
    ForeignField("tool", "cache_control", _MARKS, None),
    ForeignField("tool", "defer_loading", "Anthropic, through LiteLLM", None),
    ForeignField("function", "cache_control", _MARKS, None),
    ForeignField("function", "defer_loading", "Anthropic, through LiteLLM", None),
    ForeignField("call", "extra_content", "Google: signatures of thoughts", None),
    ForeignField("call", "provider_specific_fields", "LiteLLM", None),
    ForeignField("called function", "parsed_arguments", "OpenAI's SDK: `parse`", None),
    ForeignField("called function", "provider_specific_fields", "LiteLLM", None),
)


def _place(name: str, *fields: str) -> Place:
    kept_out = {each.name for each in FOREIGN_FIELDS if each.place == name and each.use is None}
    return Place(frozenset(fields), frozenset(kept_out - {*fields}))


_MESSAGE = _place("message", *Message.model_fields, *REASONING_LISTS)
_PART = _place("part", "type", *PART_TEXTS.values())
_TOOL = _place("tool", *Tool.model_fields)
_FUNCTION = _place("function", *Function.model_fields)
_CALL = _place("call", *ToolCall.model_fields)
_CALLED = _place("called function", *CalledFunction.model_fields)


def known_history(fields: Mapping[str, object], unknown: UnknownFields) -> dict[str, object]:
    """Return the fields of a chat's body, the objects of its history without the fields that are
    not known. Objects of another form stay as they are, for the checks. Raises RequestError."""
    reader, kept = _HistoryReader(unknown), dict(fields)
    for name, read in (
        ("messages", reader.message),
        ("tools", reader.tool),
        ("functions", reader.function),
    ):
        given = fields.get(name)
        if isinstance(given, list):
            kept[name] = [
                read(each, f"{name}[{index}]") if isinstance(each, dict) else each
                for index, each in enumerate(given)
            ]
    return kept


class _HistoryReader:
    """Reads objects of a history, each at a path."""

    def __init__(self, unknown: UnknownFields) -> None:
        self._unknown = unknown

    def message(self, given: Mapping[str, object], where: str) -> Mapping[str, object]:
        known = self._unknown.known(given, _MESSAGE, where)
        content, calls = known.get("content"), known.get("tool_calls")
        changed: dict[str, object] = {}
        if isinstance(content, list):
            changed["content"] = [
                self._part(each, f"{where}.content[{index}]") for index, each in enumerate(content)
            ]
        if isinstance(calls, list):
            changed["tool_calls"] = [
                self._call(each, f"{where}.tool_calls[{index}]") for index, each in enumerate(calls)
            ]
        if isinstance(called := known.get("function_call"), dict):
            changed["function_call"] = self._unknown.known(
                called, _CALLED, f"{where}.function_call"
            )
        return {**known, **changed} if changed else known

    def tool(self, given: Mapping[str, object], where: str) -> Mapping[str, object]:
        known = self._unknown.known(given, _TOOL, where)
        function = known.get("function")
        if not isinstance(function, dict):
            return known
        return {**known, "function": self.function(function, f"{where}.function")}

    def function(self, given: Mapping[str, object], where: str) -> Mapping[str, object]:
        return self._unknown.known(given, _FUNCTION, where)

    def _part(self, given: object, where: str) -> object:
        # Parts of another type are refused by the type, whatever else they hold.
        kind = given.get("type") if isinstance(given, dict) else None
        if not isinstance(given, dict) or not isinstance(kind, str) or kind not in PART_TEXTS:
            return given
        return self._unknown.known(given, _PART, where)

    def _call(self, given: object, where: str) -> object:
        if not isinstance(given, dict):
            return given
        known = self._unknown.known(given, _CALL, where)
        function = known.get("function")
        if not isinstance(function, dict):
            return known
        called = self._unknown.known(function, _CALLED, f"{where}.function")
        return {**known, "function": called}
