"""docs/capabilities.md tells of every row, and every file and test it names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/capabilities.md").read_text(encoding="utf-8")
NUM_ROWS = {"A": 20, "B": 32, "C": 25, "D": 10, "E": 5, "F": 10}
ROWS = [line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| [A-F]\d+ \|", line)]
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))
FILES = sorted(set(re.findall(r"`([\w/]+\.py)`", PAGE)))


def test_every_row_is_there_once() -> None:
    wanted = [f"{part}{number + 1}" for part, num in NUM_ROWS.items() for number in range(num)]
    assert [row[0].strip("| ") for row in ROWS] == wanted


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip("| ") for row in ROWS])
def test_a_row_is_proven_or_open(row: list[str]) -> None:
    state, proof = row[2], row[-1]
    assert state.split(":")[0].split(",")[0].split(";")[0].split(" ")[0] in {
        "yes",
        "otherwise",
        "partly",
        "open",
    }
    assert state.startswith("open") or "::test_" in proof or "::Test" in proof


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_a_named_test_is_there(file: str, name: str) -> None:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    found |= {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert name in found


@pytest.mark.parametrize("file", FILES)
def test_a_named_file_is_there(file: str) -> None:
    assert (ROOT / "src/quire" / file).is_file()
