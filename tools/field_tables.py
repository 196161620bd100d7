"""The table of request fields for docs/api.md, from the capability table and the models of
requests: what becomes of each field at each endpoint, and which values it takes."""

import json
from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, JsonValue
from pydantic.json_schema import models_json_schema

from quire.server.apis.openai.history_fields import FOREIGN_FIELDS
from quire.server.apis.protocol.capabilities import Support, capabilities_of, capability_table

MOST = 2**63 - 1
"""A bound that only keeps integers within 64 bits is left out."""
UNKNOWN = "-"
Schema = Mapping[str, JsonValue]


def history_field_table() -> str:
    """Return a row for each field of histories that other servers have."""
    rows = ["| Object | Field | Who sends it | Effect |", "|---|---|---|---|"]
    for each in FOREIGN_FIELDS:
        effect = each.use or "kept out of the prompt"
        rows.append(f"| {each.place} | `{each.name}` | {each.source} | {effect} |")
    return "\n".join(rows)


def field_table(bodies: Mapping[str, type[BaseModel]]) -> str:
    """Return a row for each field, and a column for each endpoint."""
    return "\n".join(_rows(bodies))


def _rows(bodies: Mapping[str, type[BaseModel]]) -> Iterator[str]:
    support = {(path, field): what for path, field, what in capability_table(bodies)}
    values = _values_by_field(bodies)
    yield f"| Field | {' | '.join(f'`{path}`' for path in bodies)} | Values |"
    yield f"|---|{'---|' * len(bodies)}---|"
    for field in sorted({field for _, field in support}):
        told = [support.get((path, field)) for path in bodies]
        cells = [UNKNOWN if each is None else each.value for each in told]
        shown = dict.fromkeys(values[path, field] for path in bodies if values.get((path, field)))
        yield f"| `{field}` | {' | '.join(cells)} | {'; '.join(shown)} |"


def _values_by_field(bodies: Mapping[str, type[BaseModel]]) -> dict[tuple[str, str], str]:
    _, definitions = models_json_schema([(model, "validation") for model in bodies.values()])
    schemas: dict[str, Schema] = definitions["$defs"]
    values: dict[tuple[str, str], str] = {}
    for path, model in bodies.items():
        properties = schemas[model.__name__]["properties"]
        assert isinstance(properties, dict)
        for field, schema in properties.items():
            values[path, field] = _values(schema, schemas)
        for field, capability in capabilities_of(path, model).items():
            if capability.support is Support.UNSUPPORTED and capability.passing:
                values[path, field] = f"refused except {_codes(capability.passing)}"
    return values


def _values(schema: JsonValue, schemas: Mapping[str, Schema]) -> str:
    """Return the values that a schema takes, in words."""
    assert isinstance(schema, dict)
    reference, parts = schema.get("$ref"), schema.get("anyOf")
    if isinstance(reference, str):
        return _values(dict(schemas[reference.rpartition("/")[2]]), schemas)
    if isinstance(parts, list):
        words = [_values(part, schemas) for part in parts]
        return " or ".join(dict.fromkeys(word for word in words if word != "null"))
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list):
        return _codes([choice for choice in choices if choice is not None])
    match schema.get("type"):
        case "array":
            items = _values(schema.get("items", {}), schemas)
            return f"list of {items or 'anything'}{_bounds(schema, 'Items')}"
        case "string":
            return f"string{_bounds(schema, 'Length')}"
        case "integer" | "number" as kind:
            return f"{kind}{_range(schema)}"
        case str(kind):
            return kind
        case _:
            return ""


def _bounds(schema: Schema, of: str) -> str:
    """Return how long a list or a string may be."""
    least, most = schema.get(f"min{of}"), schema.get(f"max{of}")
    what = "characters" if of == "Length" else "items"
    words = [
        f"at least {least}" if isinstance(least, int) and least > 1 else "",
        f"at most {most:,}" if isinstance(most, int) else "",
    ]
    told = " and ".join(filter(None, words))
    return f" ({told} {what})" if told else ""


def _range(schema: Schema) -> str:
    above = schema.get("exclusiveMinimum")
    low = [f"above {above}"] if above is not None else _bound("from", schema.get("minimum"))
    return "".join(f" {each}" for each in (*low, *_bound("to", schema.get("maximum"))))


def _bound(word: str, bound: JsonValue) -> list[str]:
    is_told = isinstance(bound, int | float) and abs(bound) < MOST
    return [f"{word} {bound}"] if is_told else []


def _codes(values: Sequence[object]) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in values)
