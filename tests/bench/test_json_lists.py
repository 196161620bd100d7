"""Lists under schemas are counted as far as they were asked for, and empty ones are seen."""

import json
from pathlib import Path

import pytest
from bench.json_list_records import JsonListRecord, ListTally, list_table, newest_lists
from bench.machine import Machine

pytest.importorskip("jsonschema", reason="jsonschema is not installed")
from bench.json_lists import LAYOUTS, NUM_ASKED, TASKS, counted  # noqa: E402

FRUITS = TASKS[0]
FIG = {"item": "fig", "price": 1.5}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps({"items": [FIG] * 3}, indent=2), ListTally("x", num_items=3, num_tokens=9)),
        (json.dumps({"items": [FIG] * 7}), ListTally("x", num_items=5, num_tokens=9)),
        ('{"items":[]}', ListTally("x", num_empty=1, num_tokens=9)),
        ('{"items":[1]}', ListTally("x", num_invalid=1, num_tokens=9)),
        ('{"items":[', ListTally("x", num_invalid=1, num_tokens=9)),
    ],
)
def test_items_are_counted_as_far_as_asked_for(text: str, expected: ListTally) -> None:
    assert counted("x", FRUITS, text, 9) == expected


def test_a_record_is_tabled_as_it_was_kept(tmp_path: Path) -> None:
    machine = Machine("Intel(R) Xeon(R)", 2, (), 480.0, 24.0)
    tallies = [ListTally("none", num_items=2, num_tokens=30), ListTally("none", num_cut=1)]
    summed = ListTally.summed(tallies, 2.0, 15)
    record = JsonListRecord(
        "2026-01-01 10:00 UTC", "abc", "m", "float32", machine, 2, 9, 50, (summed,)
    )
    record.save(tmp_path)
    assert newest_lists(tmp_path) == record
    row = list_table(record).splitlines()[-1]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        *("none", "2 of 9", "0", "0", "1", "30", "15")
    ]


def test_tasks_ask_for_what_the_docs_say() -> None:
    assert (len(TASKS), NUM_ASKED, len(LAYOUTS)) == (20, 69, 4)
