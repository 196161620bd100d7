"""The fields that say what an output must be of: a JSON schema, a regular expression, one of some
strings, or a grammar. Each becomes a `GrammarSource`, whose size is bounded.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError, from_json

from quire.server.apis.protocol.fields import GenerationFields
from quire.server.grammars.source import GrammarKind, GrammarSource

MAX_GRAMMAR_BYTES = 64 * 1024
"""The text of a regular expression or grammar, or of a schema as JSON."""
MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_VALUES = 8192
"""Objects, arrays and other values of a schema, in all its parts."""
MAX_CHOICES = 1024
MAX_NAME_CHARS = 64
JSON_OBJECT = "json_object"
ANY_OBJECT = '{"type": "object"}'
FORMATS = ("text", JSON_OBJECT, "json_schema")
WHITESPACE = "disable_any_whitespace"
WHITESPACE_FIELD = f"structured_outputs.{WHITESPACE}"
_TRUE_ANYWAY = "disable_fallback"
"""An option of vLLM that forbids what Quire never does."""


class StructuredOutputs(NamedTuple):
    """vLLM's `structured_outputs`: what the output must be of, None where another field says it,
    and whether JSON has no white space between its parts, None where the server says it."""

    source: GrammarSource | None
    disable_any_whitespace: bool | None


def _error(message: str, where: str = "") -> PydanticCustomError:
    return PydanticCustomError("grammar", "{message}", {"message": message, "where": where})


def _unsupported(where: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported", "is not supported yet", {"where": where})


def _read_json(given: object, where: str) -> str:
    if isinstance(given, str):
        try:
            given = from_json(given, allow_inf_nan=False)
        except ValueError:
            raise _error("must be a JSON schema, or a string that holds one", where) from None
    if not isinstance(given, dict | bool):
        raise _error("must be a JSON schema, an object or a boolean", where)
    _check_size(given, where)
    return _checked_text(json.dumps(given, ensure_ascii=False), where)


def _check_size(schema: object, where: str) -> None:
    """Raise PydanticCustomError for a schema with too many or too deeply nested values."""
    level, num_values, depth = [schema], 0, 0
    while level:
        num_values, depth = num_values + len(level), depth + 1
        if num_values > MAX_SCHEMA_VALUES:
            raise _error(f"has more than the {MAX_SCHEMA_VALUES} values that are allowed", where)
        if depth > MAX_SCHEMA_DEPTH:
            raise _error(f"is nested deeper than the {MAX_SCHEMA_DEPTH} levels allowed", where)
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
        level = inner


def _read_text(given: object, where: str) -> str:
    if not isinstance(given, str) or not given:
        raise _error("must be a string that is not empty", where)
    return _checked_text(given, where)


def _checked_text(text: str, where: str) -> str:
    num_bytes = len(text.encode(errors="replace"))
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise _error(f"has {num_bytes} bytes, at most {MAX_GRAMMAR_BYTES} are allowed", where)
    return text


def _read_choice(given: object, where: str) -> str:
    if not isinstance(given, list) or not given:
        raise _error("must be a list of strings that is not empty", where)
    if len(given) > MAX_CHOICES:
        raise _error(f"has {len(given)} items, at most {MAX_CHOICES} are allowed", where)
    for index, each in enumerate(given):
        _read_text(each, f"{where}[{index}]")
    return _checked_text(json.dumps(given, ensure_ascii=False), where)


_READERS: Mapping[GrammarKind, Callable[[object, str], str]] = {
    GrammarKind.JSON: _read_json,
    GrammarKind.REGEX: _read_text,
    GrammarKind.CHOICE: _read_choice,
    GrammarKind.GRAMMAR: _read_text,
}


def _read_structured_outputs(given: object) -> StructuredOutputs | None:
    if given is None:
        return None
    names = (*GrammarKind, JSON_OBJECT)
    if not isinstance(given, dict):
        raise _error(f"must be an object with one of {', '.join(names)}")
    for key, value in given.items():
        if key not in (*names, WHITESPACE, _TRUE_ANYWAY) and value is not None:
            raise _unsupported(f".{str(key)[:MAX_NAME_CHARS]}")
    disables = given.get(WHITESPACE)
    if not isinstance(disables, bool | None):
        raise _error("must be true or false", f".{WHITESPACE}")
    kinds = [kind for kind in names if given.get(kind) not in (None, False)]
    if len(kinds) > 1 or (not kinds and disables is None):
        raise _error(f"must have exactly one of {', '.join(names)}")
    source = _read_source(kinds[0], given[kinds[0]]) if kinds else None
    return StructuredOutputs(source, disables)


def _read_source(kind: str, given: object) -> GrammarSource:
    field = f"structured_outputs.{kind}"
    if kind == JSON_OBJECT:
        if given is not True:
            raise _error("must be true or false", f".{kind}")
        return GrammarSource(GrammarKind.JSON, ANY_OBJECT, field)
    kind = GrammarKind(kind)
    return GrammarSource(kind, _READERS[kind](given, f".{kind}"), field)


def _read_response_format(given: object) -> GrammarSource | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise _error("must be an object")
    named = given.get("type")
    if named not in FORMATS:
        raise _error(f"must be one of {', '.join(FORMATS)}", ".type")
    for key, value in given.items():
        if key not in ("type", "json_schema") and value is not None:
            raise _unsupported(f".{str(key)[:MAX_NAME_CHARS]}")
    if named == "json_schema":
        where = ".json_schema"
        return read_json_schema(given.get("json_schema"), where, f"response_format{where}")
    if given.get("json_schema") is not None:
        raise _error("goes with the type 'json_schema' alone", ".json_schema")
    if named == JSON_OBJECT:
        return GrammarSource(GrammarKind.JSON, ANY_OBJECT, "response_format.type")
    return None


def read_json_schema(given: object, where: str, path: str) -> GrammarSource:
    """Read a schema with its name, which stands at `where` in a field and at `path` in the body.
    Raises PydanticCustomError."""
    if not isinstance(given, dict):
        raise _error("must be an object with a name and a schema", where)
    known = ("name", "description", "schema", "strict")
    unknown = next((str(key) for key in given if key not in known), None)
    if unknown is not None:
        raise _unsupported(f"{where}.{unknown[:MAX_NAME_CHARS]}")
    name = given.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise _error(f"must be a string of 1 to {MAX_NAME_CHARS} characters", f"{where}.name")
    if not isinstance(given.get("description", ""), str | None):
        raise _error("must be a string", f"{where}.description")
    if not isinstance(given.get("strict"), bool | None):
        raise _error("must be true or false", f"{where}.strict")
    if not isinstance(given.get("schema"), dict):
        raise _error("must be a JSON schema, an object", f"{where}.schema")
    text = _read_json(given["schema"], f"{where}.schema")
    return GrammarSource(GrammarKind.JSON, text, f"{path}.schema", given.get("strict") is True)


def _reader(kind: GrammarKind) -> PlainValidator:
    def read(given: object) -> GrammarSource | None:
        if given is None:
            return None
        return GrammarSource(kind, _READERS[kind](given, ""), f"guided_{kind}")

    return PlainValidator(read)


_NULL = {"type": "null"}
_TEXT_SCHEMA = {"type": "string", "minLength": 1}
_CHOICE_SCHEMA = {"type": "array", "items": _TEXT_SCHEMA, "minItems": 1, "maxItems": MAX_CHOICES}
_JSON_SCHEMA = {"anyOf": [{"type": "object"}, {"type": "boolean"}, {"type": "string"}]}
_FORMAT_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"enum": [*FORMATS]},
        "json_schema": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS},
                        "description": {"anyOf": [{"type": "string"}, _NULL]},
                        "schema": {"type": "object"},
                        "strict": {"anyOf": [{"type": "boolean"}, _NULL]},
                    },
                    "required": ["name", "schema"],
                    "additionalProperties": False,
                },
                _NULL,
            ]
        },
    },
    "required": ["type"],
    "additionalProperties": False,
}
_STRUCTURED_SCHEMA = {
    "type": "object",
    "properties": {
        "json": {"anyOf": [_JSON_SCHEMA, _NULL]},
        "regex": {"anyOf": [_TEXT_SCHEMA, _NULL]},
        "choice": {"anyOf": [_CHOICE_SCHEMA, _NULL]},
        "grammar": {"anyOf": [_TEXT_SCHEMA, _NULL]},
        JSON_OBJECT: {"anyOf": [{"type": "boolean"}, _NULL]},
        WHITESPACE: {"anyOf": [{"type": "boolean"}, _NULL]},
        _TRUE_ANYWAY: {"anyOf": [{"type": "boolean"}, _NULL]},
    },
    "additionalProperties": False,
}


def _or_null(schema: Mapping[str, object]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [schema, _NULL]})


Format: TypeAlias = Annotated[
    GrammarSource | None, PlainValidator(_read_response_format), _or_null(_FORMAT_SCHEMA)
]
Structured: TypeAlias = Annotated[
    StructuredOutputs | None, PlainValidator(_read_structured_outputs), _or_null(_STRUCTURED_SCHEMA)
]
GuidedJson: TypeAlias = Annotated[
    GrammarSource | None, _reader(GrammarKind.JSON), _or_null(_JSON_SCHEMA)
]
GuidedRegex: TypeAlias = Annotated[
    GrammarSource | None, _reader(GrammarKind.REGEX), _or_null(_TEXT_SCHEMA)
]
GuidedChoice: TypeAlias = Annotated[
    GrammarSource | None, _reader(GrammarKind.CHOICE), _or_null(_CHOICE_SCHEMA)
]
GuidedGrammar: TypeAlias = Annotated[
    GrammarSource | None, _reader(GrammarKind.GRAMMAR), _or_null(_TEXT_SCHEMA)
]


class StructuredFields(GenerationFields):
    """The fields of which at most one says what an output must be of: OpenAI's `response_format`,
    vLLM's `structured_outputs` and the older `guided_*`."""

    response_format: Format = None
    structured_outputs: Structured = None
    guided_json: GuidedJson = None
    guided_regex: GuidedRegex = None
    guided_choice: GuidedChoice = None
    guided_grammar: GuidedGrammar = None

    @property
    def grammar_sources(self) -> tuple[GrammarSource, ...]:
        """All that the output must be of; more than one is a fault."""
        given = (
            self.response_format,
            self.structured_outputs and self.structured_outputs.source,
            self.guided_json,
            self.guided_regex,
            self.guided_choice,
            self.guided_grammar,
        )
        return tuple(each for each in given if each is not None)

    @property
    def disable_any_whitespace(self) -> bool | None:
        """Whether JSON has no white space between its parts; None leaves that to the server."""
        return self.structured_outputs and self.structured_outputs.disable_any_whitespace
