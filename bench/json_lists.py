"""Ask a model for lists under JSON schemas, and count the items that come.

    python -m bench.json_lists MODEL [--dtype float32] [--record]

Twenty tasks of two to five items each are put to a server of its own, greedy, with each white space
that JSON may have: to see that answers are valid is not to see whether lists are empty.
"""

import argparse
import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from jsonschema import Draft202012Validator

from bench.json_list_records import JsonListRecord, ListTally, list_table
from bench.machine import read_commit, read_machine
from bench.records import DATE_FORMAT
from quire.server.grammars.json_values import TEMPLATE, json_value
from quire.workbench.bench.processes import own_server

NAME = "bench"
MAX_TOKENS = 300
NUM_AT_ONCE = 8
TIMEOUT_S = 600.0
FORCED = "quire:forced_tokens_total{"
TEXT: dict[str, object] = {"type": "string"}
WHOLE: dict[str, object] = {"type": "integer"}
NUMBER: dict[str, object] = {"type": "number"}
PRIORITY: dict[str, object] = {"enum": ["low", "medium", "high"]}


class Task(NamedTuple):
    """A list to be made: `prompt` asks for `num_items` items, `schema` has the list under `key`."""

    prompt: str
    num_items: int
    key: str
    item: Mapping[str, object]

    @property
    def schema(self) -> dict[str, object]:
        return _closed({self.key: {"type": "array", "items": self.item}})


def _closed(properties: Mapping[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _pairs(first: str, second: str, value: Mapping[str, object] = TEXT) -> dict[str, object]:
    return _closed({first: TEXT, second: value})


TASKS = (
    Task("Make a price list of five fruits.", 5, "items", _pairs("item", "price", NUMBER)),
    Task("List three books and their authors.", 3, "books", _pairs("title", "author")),
    Task(
        "List four capitals of Europe with their countries.",
        4,
        "capitals",
        _pairs("city", "country"),
    ),
    Task(
        "Write a shopping list of five things for breakfast.",
        5,
        "items",
        _pairs("name", "quantity", WHOLE),
    ),
    Task("Name three primary colors.", 3, "colors", TEXT),
    Task("Give three tips for better sleep.", 3, "tips", TEXT),
    Task(
        "List four planets with their order from the sun.",
        4,
        "planets",
        _pairs("name", "order", WHOLE),
    ),
    Task(
        "Plan a day with three activities, each with a time.",
        3,
        "activities",
        _pairs("time", "activity"),
    ),
    Task(
        "List three programming languages and the year of each.",
        3,
        "languages",
        _pairs("name", "year", WHOLE),
    ),
    Task(
        "Make a quiz with two questions and answers.",
        2,
        "questions",
        _pairs("question", "answer"),
    ),
    Task(
        "List four animals and the sounds that they make.",
        4,
        "animals",
        _pairs("animal", "sound"),
    ),
    Task("Suggest three names for a cat.", 3, "names", TEXT),
    Task(
        "List the ingredients of a pancake with amounts, four of them.",
        4,
        "ingredients",
        _pairs("ingredient", "amount"),
    ),
    Task(
        "Name three people who work in a school, with their jobs.",
        3,
        "people",
        _pairs("name", "job"),
    ),
    Task(
        "List three sports and the number of players in a team.",
        3,
        "sports",
        _pairs("sport", "players", WHOLE),
    ),
    Task(
        "Write a to-do list of four tasks, each with a priority.",
        4,
        "tasks",
        _pairs("task", "priority", PRIORITY),
    ),
    Task("Translate one, two and three to French.", 3, "words", _pairs("english", "french")),
    Task(
        "List three famous scientists and their discoveries.",
        3,
        "scientists",
        _pairs("name", "discovery"),
    ),
    Task("Give the names of four vegetables.", 4, "vegetables", TEXT),
    Task(
        "List three rivers with their lengths in kilometers.",
        3,
        "rivers",
        _pairs("river", "kilometers", NUMBER),
    ),
)
NUM_ASKED = sum(task.num_items for task in TASKS)


def _compact(schema: Mapping[str, object]) -> dict[str, object]:
    return {"structured_outputs": {"json": schema, "disable_any_whitespace": True}}


def _separated(schema: Mapping[str, object]) -> dict[str, object]:
    return {"structured_outputs": {"grammar": f"start: {json_value(schema, TEMPLATE)}"}}


def _unbounded(schema: Mapping[str, object]) -> dict[str, object]:
    return {"structured_outputs": {"grammar": f"start: %json {json.dumps(schema)}"}}


def _default(schema: Mapping[str, object]) -> dict[str, object]:
    wanted = {"name": "list", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}


LAYOUTS: Mapping[str, Callable[[Mapping[str, object]], dict[str, object]]] = {
    "none (`disable_any_whitespace`)": _compact,
    "a blank after each comma and colon": _separated,
    "any, unbounded": _unbounded,
    "as printers write it (the default)": _default,
}


def attempt(url: str, layout: str, task: Task) -> ListTally:
    """Do one task, and count what came."""
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": task.prompt}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        **LAYOUTS[layout](task.schema),
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        answer = json.load(reply)
    choice, num_tokens = answer["choices"][0], answer["usage"]["completion_tokens"]
    if choice["finish_reason"] != "stop":
        return ListTally(layout, num_cut=1, num_tokens=num_tokens)
    return counted(layout, task, choice["message"]["content"], num_tokens)


def counted(layout: str, task: Task, text: str, num_tokens: int) -> ListTally:
    """Count the items of a whole answer, no more than were asked for."""
    try:
        value = json.loads(text)
    except ValueError:
        return ListTally(layout, num_invalid=1, num_tokens=num_tokens)
    if not Draft202012Validator(task.schema).is_valid(value):
        return ListTally(layout, num_invalid=1, num_tokens=num_tokens)
    num_items = len(value[task.key])
    return ListTally(
        layout,
        num_items=min(num_items, task.num_items),
        num_empty=int(not num_items),
        num_tokens=num_tokens,
    )


def forced_tokens(url: str) -> int:
    """Return how many tokens the server's grammars have decided without a draw."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S) as reply:
        lines = reply.read().decode().splitlines()
    return sum(int(float(each.split()[-1])) for each in lines if each.startswith(FORCED))


def run(url: str) -> tuple[ListTally, ...]:
    """Do all tasks in each layout."""
    tallies = []
    for layout in LAYOUTS:
        began_s, num_forced = time.monotonic(), forced_tokens(url)
        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            done = list(pool.map(lambda task, layout=layout: attempt(url, layout, task), TASKS))
        seconds, num_forced = time.monotonic() - began_s, forced_tokens(url) - num_forced
        tallies.append(ListTally.summed(done, seconds, num_forced))
        print(tallies[-1], flush=True)
    return tuple(tallies)


def main() -> None:
    """Do all tasks in each layout, print the table, and keep the record if asked to."""
    parser = argparse.ArgumentParser(prog="python -m bench.json_lists")
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--record", action="store_true", help="keep it under bench/records")
    args = parser.parse_args()
    flags = ("--served-model-name", NAME, "--dtype", args.dtype)
    date = datetime.now(UTC).strftime(DATE_FORMAT)
    with own_server((str(args.model), *flags)) as server:
        tallies = run(server.url)
    record = JsonListRecord(
        date,
        read_commit(Path(__file__).parent.parent),
        args.model.name,
        args.dtype,
        read_machine(),
        len(TASKS),
        NUM_ASKED,
        MAX_TOKENS,
        tallies,
    )
    print(list_table(record))
    if args.record:
        print(f"kept as {record.save().name}; `make readme` refreshes docs/schemas.md")


if __name__ == "__main__":
    main()
