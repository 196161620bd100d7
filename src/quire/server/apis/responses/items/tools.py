"""Tools of a request: functions and custom tools, alone or in namespaces. The model has one list of
functions; a custom tool is a function of one text, and a namespace is a part of the name."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from quire.server.apis.protocol.fields import StrictModel
from quire.server.apis.protocol.parse import invalid, missing, string_of, unsupported, validate
from quire.server.apis.protocol.structured import MAX_GRAMMAR_BYTES
from quire.server.apis.protocol.tools import (
    CHOICES,
    MAX_NAME_CHARS,
    MAX_TOOLS,
    Function,
    ToolName,
    input_tool,
)
from quire.server.apis.protocol.unknown_fields import Place, UnknownFields
from quire.server.apis.responses.items.custom_input import INPUT
from quire.server.generation.input import InputTool, NamedChoice, ToolChoice
from quire.server.grammars.source import GrammarKind, GrammarSource

FUNCTION, CUSTOM, NAMESPACE = "function", "custom", "namespace"
ROOT = "functions"
"""The namespace in which OpenAI's models see the functions that have none."""
ADDITIONAL_TOOLS = "additional_tools"
"""An item of the input that brings tools."""
HOSTED_TOOLS = frozenset(
    (
        *("apply_patch", "code_interpreter", "computer", "computer_use", "computer_use_preview"),
        *("file_search", "image_generation", "local_shell", "mcp", "programmatic_tool_calling"),
        *("shell", "tool_search", "web_search", "web_search_2025_08_26", "web_search_preview"),
        "web_search_preview_2025_03_11",
    )
)
"""Types of tools that OpenAI runs, or that its models know without a description."""
_KEPT_OUT = ("allowed_callers", "async", "defer_loading")
_FUNCTION = Place(
    frozenset(("type", *Function.model_fields)), frozenset((*_KEPT_OUT, "output_schema"))
)
_CUSTOM = Place(frozenset(("type", "name", "description", "format")), frozenset(_KEPT_OUT))
_NAMESPACE = Place(frozenset(("type", "name", "description", "tools")))
_FORMAT = Place(frozenset(("type", "syntax", "definition")))
_CHOICE_FORMS = (
    "must be 'none', 'auto', 'required', an object of type 'function' or 'custom' with a 'name', "
    "or one of type 'allowed_tools'"
)


class _CustomTool(StrictModel):
    name: ToolName
    description: str | None = None


class _Namespace(StrictModel):
    name: ToolName
    description: str | None = None


class ClientTool(msgspec.Struct, frozen=True):
    """The client's tool that a name of the model stands for. The input of a custom one is text."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the model knows the tool as the client does."""
        return self.namespace is None and not self.is_custom


class ToolTable:
    """The tools that a request offers to the model.

    tools: those of the model, in the order of the client's.
    lacks_some: whether the client has given tools that are left out.
    unknown: notes these.
    """

    def __init__(self, unknown: UnknownFields) -> None:
        self.tools: list[InputTool] = []
        self.lacks_some = False
        self._unknown = unknown
        self._known: dict[str, ClientTool] = {}
        self._names: dict[tuple[str | None, str], str] = {}

    @property
    def renamed(self) -> dict[str, ClientTool]:
        """The client's tools that are not plain functions, by the names of the model."""
        return {name: tool for name, tool in self._known.items() if not tool.is_plain}

    def name_of(self, name: str, namespace: str | None) -> str:
        """Return the name that the model has for a tool, offered or not."""
        found = self._names.get((namespace, name))
        return _joined(namespace, name) if found is None else found

    def add(self, given: object, where: str) -> None:
        """Add a list of tools, at the path `where`. Raises RequestError."""
        if not isinstance(given, list):
            raise invalid(where, "must be a list of tools")
        for index, each in enumerate(given):
            self._add_tool(each, f"{where}[{index}]")
        if len(self.tools) > MAX_TOOLS:
            raise invalid(where, f"has {len(self.tools)} tools, at most {MAX_TOOLS} are allowed")

    def replace_with(self, given: object, where: str) -> None:
        """Add a list of tools in place of those of the same names. Raises RequestError."""
        before = self.tools
        self.tools = []
        self.add(given, where)
        names = {tool.name for tool in self.tools}
        self.tools = [tool for tool in before if tool.name not in names] + self.tools

    def _add_tool(self, given: object, where: str) -> None:
        kind = _kind_of(given, where)
        assert isinstance(given, dict)
        if kind == NAMESPACE:
            self._add_namespace(given, where)
        elif kind in (FUNCTION, CUSTOM):
            self._add_own(given, kind, where)
        else:
            self._leave_out(kind, where)

    def _add_namespace(self, given: Mapping[str, object], where: str) -> None:
        fields = _given(self._unknown.known(given, _NAMESPACE, where))
        tools = fields.pop("tools", None)
        if not isinstance(tools, list):
            raise invalid(f"{where}.tools", "must be a list of tools")
        space = validate(fields, _Namespace, at=where)
        about = f"{space.description}\n\n" if space.description else ""
        for index, each in enumerate(tools):
            path = f"{where}.tools[{index}]"
            kind = _kind_of(each, path)
            if kind in (FUNCTION, CUSTOM):
                self._add_own(each, kind, path, space.name, about)
                about = ""
            else:
                self._leave_out(kind, path)

    def _add_own(
        self,
        given: Mapping[str, object],
        kind: str,
        where: str,
        namespace: str | None = None,
        about: str = "",
    ) -> None:
        """Add a function or a custom tool; `about` is told before its description."""
        read = self._function if kind == FUNCTION else self._custom
        tool = read(given, where)
        name = self._new_name(namespace, tool.name, where)
        self._known[name] = ClientTool(tool.name, namespace, kind == CUSTOM)
        description = f"{about}{tool.description or ''}".strip() or None
        self.tools.append(replace(tool, name=name, description=description))

    def _new_name(self, namespace: str | None, name: str, where: str) -> str:
        """Return the name of a tool for the model, which no other tool has."""
        key = (namespace, name)
        if key in self._names:
            return self._names[key]
        joined = taken = _joined(namespace, name)
        number = 1
        while taken in self._known:
            number += 1
            taken = f"{joined}_{number}"
        if len(taken) > 2 * MAX_NAME_CHARS:
            raise invalid(f"{where}.name", "is too long with its namespace")
        self._names[key] = taken
        return taken

    def _function(self, given: Mapping[str, object], where: str) -> InputTool:
        fields = _given(self._unknown.known(given, _FUNCTION, where))
        return input_tool(validate(fields, Function, at=where), where)

    def _custom(self, given: Mapping[str, object], where: str) -> InputTool:
        fields = _given(self._unknown.known(given, _CUSTOM, where))
        grammar = self._grammar(fields.pop("format", None), f"{where}.format")
        tool = validate(fields, _CustomTool, at=where)
        text: dict[str, object] = {"type": "string"}
        about = tool.description or ""
        if grammar is not None and grammar.kind is GrammarKind.REGEX:
            text["pattern"] = f"^(?:{grammar.text})$"
        elif grammar is not None:
            about += f"\n\nThe {INPUT} must match this Lark grammar:\n{grammar.text}"
        return InputTool(
            name=tool.name,
            description=about.strip() or None,
            parameters={
                "type": "object",
                "properties": {INPUT: text},
                "required": [INPUT],
            },
            strict=grammar is not None,
            path=where,
            schema_path=f"{where}.format",
            text_grammar=grammar,
        )

    def _grammar(self, given: object, where: str) -> GrammarSource | None:
        """Return the grammar of a custom tool's input, None for any text. Raises RequestError."""
        if given is None:
            return None
        if not isinstance(given, dict):
            raise invalid(where, "must be an object with a 'type', 'text' or 'grammar'")
        fields = self._unknown.known(given, _FORMAT, where)
        kind = fields.get("type")
        if kind == "text":
            return None
        if kind != "grammar":
            raise invalid(f"{where}.type", "must be 'text' or 'grammar'")
        syntax, path = fields.get("syntax"), f"{where}.definition"
        if syntax not in ("lark", "regex"):
            raise invalid(f"{where}.syntax", "must be 'lark' or 'regex'")
        definition = string_of(fields, "definition", where)
        if not definition.strip():
            raise invalid(path, "is empty")
        num_bytes = len(definition.encode(errors="replace"))
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise invalid(path, f"has {num_bytes} bytes, at most {MAX_GRAMMAR_BYTES} are allowed")
        if syntax == "lark":
            return GrammarSource(GrammarKind.GRAMMAR, definition, path)
        try:
            re.compile(definition)
        except (re.error, OverflowError, RecursionError) as error:
            raise invalid(path, f"must be a regular expression: {error}") from None
        return GrammarSource(GrammarKind.REGEX, definition, path)

    def _leave_out(self, kind: str, where: str) -> None:
        """Note a tool that only OpenAI's servers or models have. Raises RequestError for one that
        nobody knows, where such are refused."""
        self.lacks_some = True
        if kind in HOSTED_TOOLS:
            self._unknown.leave_out(where)
        else:
            self._unknown.meet_kind(where)


def read_choice(given: object, tools: ToolTable, *, one_call: bool) -> ToolChoice:
    """Return the choice that the model has among the tools. Raises RequestError."""
    where = "tool_choice"
    if given is None or (given == "auto" and not tools.tools):
        return ToolChoice(one_call=one_call)
    if given == "required" and tools.lacks_some and not tools.tools:
        raise unsupported(where, "as 'required': this server has none of the 'tools'")
    if isinstance(given, str) and given in CHOICES:
        return ToolChoice(CHOICES[given], one_call=one_call)
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        raise invalid(where, _CHOICE_FORMS)
    if given["type"] == "allowed_tools":
        return _allowed(given, tools, one_call=one_call)
    among = (_named(given, tools, where),)
    return ToolChoice("required", among, names_one=True, one_call=one_call)


def _allowed(given: Mapping[str, object], tools: ToolTable, *, one_call: bool) -> ToolChoice:
    """Return a choice among some of the tools. Raises RequestError."""
    mode, named = given.get("mode"), given.get("tools")
    if mode not in ("auto", "required") or not isinstance(named, list) or not named:
        raise invalid(
            "tool_choice",
            "must have a 'mode', 'auto' or 'required', and 'tools' with a 'name' each",
        )
    among = tuple(
        _named(each, tools, f"tool_choice.tools[{index}]") for index, each in enumerate(named)
    )
    return ToolChoice(CHOICES[mode], among, one_call=one_call)


def _named(given: object, tools: ToolTable, where: str) -> NamedChoice:
    """Return the tool that a choice names. Raises RequestError for one that is not the client's
    own."""
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind not in (FUNCTION, CUSTOM):
        if isinstance(kind, str) and kind in HOSTED_TOOLS:
            raise unsupported(f"{where}.type", f"as {kind!r}: this server has no such tool")
        at = where if where == "tool_choice" else f"{where}.type"
        raise invalid(at, _CHOICE_FORMS if at == where else "must be 'function' or 'custom'")
    namespace = given.get("namespace")
    if namespace is not None and not isinstance(namespace, str):
        raise invalid(f"{where}.namespace", "must be a string")
    name = string_of(given, "name", where)
    return NamedChoice(tools.name_of(name, namespace), f"{where}.name")


def _kind_of(given: object, where: str) -> str:
    if not isinstance(given, dict):
        raise invalid(where, "must be an object")
    kind = given.get("type")
    if kind is None:
        raise missing(f"{where}.type")
    if not isinstance(kind, str):
        raise invalid(f"{where}.type", "must be a string")
    return kind


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that have a value, but for the type."""
    return {key: each for key, each in fields.items() if key != "type" and each is not None}


def _joined(namespace: str | None, name: str) -> str:
    """Return one name for a tool in a namespace."""
    if namespace is None or namespace == ROOT:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def tools_of(
    top_level: Sequence[Mapping[str, object]] | None,
    items: Iterator[tuple[Mapping[str, object], str]],
    unknown: UnknownFields,
) -> ToolTable:
    """Return the tools of a request, and those that items of its input bring, each item with its
    path. Raises RequestError."""
    table = ToolTable(unknown)
    table.add([*(top_level or ())], "tools")
    for item, where in items:
        if item.get("type") == ADDITIONAL_TOOLS:
            table.replace_with(item.get("tools"), f"{where}.tools")
    return table
