"""How the source lies: small folders, and neither modules nor headers that include each other."""

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
NATIVE = SOURCE / "quire/models/native"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}
MOST_FILES = 25
SUFFIXES = frozenset((".py", ".cpp", ".h"))


def imports(path: Path) -> Iterator[str]:
    """The modules of Quire that a module imports, within functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)


def cycle_of(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def test_a_cycle_is_found() -> None:
    assert set(cycle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()})) == {"a", "b", "c"}


def test_no_modules_import_each_other() -> None:
    graph = {name: set(imports(path)) - {name} for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > len(graph)
    assert cycle_of(graph) == []


def test_no_headers_include_each_other() -> None:
    files = {str(path.relative_to(NATIVE)): path for path in NATIVE.rglob("*.[hc]*")}
    graph = {name: set(includes(path)) for name, path in files.items() if path.suffix in SUFFIXES}
    assert set().union(*graph.values()) <= set(graph)
    assert cycle_of(graph) == []


@pytest.mark.parametrize(
    "folder",
    sorted({path.parent for path in SOURCE.rglob("*") if path.suffix in SUFFIXES}),
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_a_folder_can_be_looked_over(folder: Path) -> None:
    files = [path.name for path in folder.iterdir() if path.suffix in SUFFIXES]
    assert len(files) <= MOST_FILES


def test_every_package_is_on_the_map() -> None:
    page = (SOURCE.parent / "docs/architecture.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `([\w/]+)` \|", page, re.MULTILINE))
    inner = {"server/http/openapi", "server/openai/protocol", "models/attention/triton"}
    inner |= {f"models/native/{name}" for name in ("linear", "decoder", "sampling")}
    root = SOURCE / "quire"
    packages = {str(path.parent.relative_to(root)) for path in root.glob("*/**/__init__.py")}
    assert packages - inner == told
    assert all(name.rpartition("/")[2] in page for name in inner)
