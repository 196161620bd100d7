"""How the source lies: small folders, short functions, and no modules or headers that include each
other."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
NATIVE = SOURCE / "quire/models/native"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}
MOST_FILES = 25
MOST_LINES = 60
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


def package_of(name: str) -> str:
    return name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]


def lies_in(package: str, other: str) -> bool:
    return f"{package}.".startswith(f"{other}.")


def package_imports() -> dict[str, set[str]]:
    """The packages that a package imports, but for those it lies in and those in it."""
    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        importer = package_of(name)
        imported = set(map(package_of, imports(path)))
        graph.setdefault(importer, set()).update(
            each for each in imported if not lies_in(each, importer) and not lies_in(importer, each)
        )
    return graph


def test_no_packages_import_each_other() -> None:
    graph = package_imports()
    assert len(graph) > 50
    assert cycle_of(graph) == []


def test_no_headers_include_each_other() -> None:
    files = {str(path.relative_to(NATIVE)): path for path in NATIVE.rglob("*.[hc]*")}
    graph = {name: set(includes(path)) for name, path in files.items() if path.suffix in SUFFIXES}
    assert set().union(*graph.values()) <= set(graph)
    assert cycle_of(graph) == []


@pytest.mark.parametrize(
    "folder",
    sorted(
        {
            path.parent
            for tree in (SOURCE, ROOT / "tests")
            for path in tree.rglob("*")
            if path.suffix in SUFFIXES
        }
    ),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_folder_can_be_looked_over(folder: Path) -> None:
    files = [path.name for path in folder.iterdir() if path.suffix in SUFFIXES]
    assert len(files) <= MOST_FILES


def test_every_package_is_on_the_map() -> None:
    page = (SOURCE.parent / "docs/architecture.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `([\w/]+)` \|", page, re.MULTILINE))
    inner = {"server/app/openapi", "server/apis/protocol"}
    inner |= {"models/attention/triton", "models/kv/triton"}
    inner |= {
        f"models/native/{name}" for name in ("linear", "linear/quantised", "decoder", "sampling")
    }
    root = SOURCE / "quire"
    packages = {str(path.parent.relative_to(root)) for path in root.glob("*/**/__init__.py")}
    assert packages - inner == told
    assert all(name.rpartition("/")[2] in page for name in inner)


class Function(NamedTuple):
    """Lines are from `def` to the end, without decorators."""

    name: str
    num_lines: int


def functions(source: str) -> Iterator[Function]:
    """All functions of a module, inner ones too, but for kernels: Triton compiles those as a
    whole."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_kernel(node):
            continue
        assert node.end_lineno is not None
        yield Function(node.name, node.end_lineno - node.lineno + 1)


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(re.match(r"triton\.jit\b", ast.unparse(each)) for each in node.decorator_list)


def test_functions_are_measured() -> None:
    source = """
    @cached
    def first(a, /, b, *rest, c, **more):
        def inner(self): ...

    class Some:
        async def second(self, a): ...

        @classmethod
        def third(cls): ...

    @triton.jit(do_not_specialize=["n"])
    def kernel(a, b): ...
    """
    found = set(functions(dedent(source)))
    assert found == {("first", 2), ("inner", 1), ("second", 1), ("third", 1)}


@pytest.mark.parametrize("folder", ["src", "bench", "tools", "tests"])
def test_functions_are_short(folder: str) -> None:
    found = [
        (str(path.relative_to(ROOT)), function)
        for path in (ROOT / folder).rglob("*.py")
        for function in functions(path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 10
    assert [each for each in found if each[1].num_lines > MOST_LINES] == []


IMPORT_ALL = """
import sys

started_with = set(sys.modules)  # what site and .pth files bring to any process
import importlib
import pkgutil


def foreign():
    own = sys.stdlib_module_names | {"quire"}
    tops = {name.partition(".")[0] for name in set(sys.modules) - started_with}
    return tops - own


package = importlib.import_module(sys.argv[1])
print(package.__name__, *foreign())
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    before = foreign()
    importlib.import_module(module.name)
    print(module.name, *foreign() - before)
"""


def packages_brought_by(package: str) -> dict[str, set[str]]:
    """By each module of a package, imported one after another in a process of their own: the
    packages that it brings first, but for the standard library and Quire."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, package], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {module: set(brought) for module, *brought in lines}


CHECKSUMS = {"quire.storage.disk.block_header": {"xxhash"}}


@pytest.mark.parametrize("package", ["quire.cache", "quire.scheduler"])
def test_nothing_but_the_standard_library_and_checksums_are_needed(package: str) -> None:
    brought = packages_brought_by(package)
    assert brought.keys() == {name for name in MODULES if f"{name}.".startswith(f"{package}.")}
    needed = {module: names for module, names in brought.items() if names}
    assert needed == {name: each for name, each in CHECKSUMS.items() if name in brought}


def test_a_package_that_a_module_brings_is_seen() -> None:
    assert "jinja2" in packages_brought_by("quire.server.text")["quire.server.text.chat_template"]


SHARED_NAMES = {
    "ToolCall": "a schema of /openapi.json, and a name of the Python interface",
}
"""Public classes of one name, and why each keeps it."""


def public_classes(source: str) -> set[str]:
    found = {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    return {name for name in found if not name.startswith("_")}


def test_public_classes_are_found() -> None:
    source = """
    class Some:
        class Inner: ...

    class _Own: ...

    def function():
        class Local: ...

    @dataclass
    class Other(Some): ...
    """
    assert public_classes(dedent(source)) == {"Some", "Other"}


def test_names_of_public_classes_are_unique() -> None:
    modules: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for name in public_classes(path.read_text(encoding="utf-8")):
            modules.setdefault(name, []).append(module)
    assert len(modules) > 1000
    shared = {name: where for name, where in modules.items() if len(where) > 1}
    assert shared.keys() == SHARED_NAMES.keys(), shared
