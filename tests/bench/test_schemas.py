"""Outputs under the schemas of SchemaStore are checked exactly, and tabled over all schemas."""

import json
import zipfile
from pathlib import Path

import pytest
from bench.machine import Machine
from bench.schema_records import (
    Attempt,
    Outcome,
    SchemaRecord,
    SchemaRow,
    load_newest,
    reason,
    schema_tables,
)

pytest.importorskip("jsonschema", reason="jsonschema is not installed")
from bench.schemas import FILES, PACKAGE, checked, keywords, last_keys, read_cases  # noqa: E402

TENTHS = {"type": "object", "properties": {"a": {"type": "number", "multipleOf": 0.1}}}


@pytest.mark.parametrize(
    ("schema", "text", "outcome"),
    [
        (TENTHS, '{"a":0.6}', Outcome.VALID),
        (TENTHS, '{"a":0.65}', Outcome.INVALID),
        ({"type": "number"}, "1E12272035557477777322", Outcome.VALID),
        ({"type": "string", "format": "ipv4"}, '"1.2.3"', Outcome.INVALID),
        ({"type": "string"}, '"half', Outcome.INVALID),
        ({"type": "string", "pattern": r"[\w-_]"}, '"a"', Outcome.UNCHECKED),
    ],
)
def test_finished_outputs_are_checked(
    schema: dict[str, object], text: str, outcome: Outcome
) -> None:
    assert checked(schema, text, 5).outcome is outcome


def test_names_of_properties_are_no_keywords() -> None:
    schema = {"properties": {"not": {"anyOf": [{"type": "string"}]}}, "title": "x", "enum": ["if"]}
    assert keywords(schema) == {"properties", "anyOf", "type", "enum"}


def test_files_of_a_wheel_are_named_as_in_its_index(tmp_path: Path) -> None:
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(PACKAGE + "index.json", json.dumps({"by_name": {"a tool": "01"}}))
        archive.writestr(FILES + "01.json", '{"type": "object"}')
        archive.writestr(FILES + "02.json", '{"type": "array"}')
        archive.writestr(FILES + "03.json", "<html>")
    cases, num_unreadable = read_cases(wheel)
    assert [case.name for case in cases] == ["a tool", "02"]
    assert num_unreadable == 1


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        ("'a.b.not' is a keyword that cannot be enforced.", "the keyword `not` cannot be enforced"),
        ("Invalid 'a.b': has 70,123 bytes, at most 65536 are allowed.", "has N bytes"),
        (
            "Invalid 'a.$ref': must be a reference into this schema, as '#'.",
            "a reference leads out of the schema",
        ),
        (
            "Invalid 'a': oneOf is not supported. Enable it while processing x://y.",
            "oneOf is not supported",
        ),
    ],
)
def test_refusals_of_one_kind_are_one_reason(why: str, expected: str) -> None:
    assert reason(why) == expected


def record(*attempts: Attempt) -> SchemaRecord:
    rows = tuple(SchemaRow(str(i), ("type",), (each,)) for i, each in enumerate(attempts))
    machine = Machine("Intel(R) Xeon(R)", 2, (), 480.0, 24.0)
    return SchemaRecord("2026-01-01 10:00 UTC", "abc", "x", "S", machine, 9, ("one",), 0, rows)


def test_tables_count_every_schema_and_name_what_is_not_valid(tmp_path: Path) -> None:
    told = record(
        Attempt(Outcome.REFUSED, why="'a.not' is a keyword that cannot be enforced."),
        Attempt(Outcome.VALID, 5),
        Attempt(Outcome.INVALID, 7, "required: 'b' is missing"),
        Attempt(Outcome.CUT, 9),
    )
    told.save(tmp_path)
    assert load_newest(tmp_path) == told
    lines = [" ".join(line.split()) for line in schema_tables(told).splitlines()]
    assert "| **of the accepted, finished** | **66.7%** |" in lines
    assert "- finished, not valid, `2`: required: 'b' is missing" in lines
    assert "| `type` | 4 | 3 | 0 | 2 | 1 |" in lines


def test_loosened_schemas_are_counted_apart_and_by_keyword() -> None:
    told = record(
        Attempt(Outcome.VALID, 5),
        Attempt(Outcome.VALID, 5, loosened=("type",)),
        Attempt(Outcome.INVALID, 7, "uniqueItems", loosened=("uniqueItems",)),
    )
    lines = [" ".join(line.split()) for line in schema_tables(told).splitlines()]
    assert "| enforced, finished, valid | 1 |" in lines
    assert "| loosened, finished, valid | 1 |" in lines
    assert "| loosened, finished, not valid | 1 |" in lines
    assert "| `type` | 3 | 3 | 1 | 3 | 2 |" in lines
    assert "Every finished output of the enforced is valid." in lines


def test_the_keywords_of_a_header_are_read() -> None:
    assert last_keys("a.b.not, a.items[0].oneOf, a.c.not, 3 more") == ("3 more", "not", "oneOf")
    assert last_keys(None) == ()
