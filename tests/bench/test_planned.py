"""Records of plans beside what was measured: read as they were written, and shown with errors."""

import argparse
from pathlib import Path

import pytest
from bench.machine import Machine
from bench.pairs import Pair
from bench.planned import parse_case
from bench.planned_records import (
    BurstRow,
    PlannedModel,
    PlannedRecord,
    load_newest,
    planned_tables,
)

ROW = BurstRow(32, Pair(80.0, 100.0), Pair(30.0, 20.0), Pair(500.0, 500.0))
MODEL = PlannedModel("small", 128, 64, 1e9, 1e11, {"weights": Pair(3 << 20, 2 << 20)}, (ROW,))
MACHINE = Machine("AMD EPYC", 2, ("avx2",), 32.0, 16.0)
RECORD = PlannedRecord("2026-01-02 03:04 UTC", "abc", "python -m ...", MACHINE, 0.1, (MODEL,))


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert RECORD.save(tmp_path).name == "2026-01-02-03-04.json"
    assert load_newest(tmp_path) == RECORD


def test_tables_show_errors() -> None:
    text = planned_tables(RECORD)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    times = ["80.0", "100.0", "-20 %", "30.0", "20.0", "+50 %", "500.0", "500.0", "+0 %"]
    assert ["small", "128, 64", "32", *times] in lines
    assert ["small", "weights", "3.0", "2.0", "+50 %"] in lines
    assert "2 cores of AMD EPYC" in text


@pytest.mark.parametrize("text", ["bundled", "bundled:1", "bundled:1:0", "nowhere:1:1"])
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected MODEL:IN:OUT|no config.json"):
        parse_case(text)


def test_a_case_has_lengths() -> None:
    case = parse_case("bundled:128:64")
    assert case.name == "bundled" and (case.folder / "config.json").is_file()
    assert case.lengths == ("--input-tokens", "128", "--output-tokens", "64")
