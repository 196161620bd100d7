"""What the project promises outside its packages: links, pages, tables, lengths."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from tools import metric_schema
from tools.generated_docs import TABLES, Table, refreshed
from tools.gpu_wheels import ENGINE as GPU_WHEELS

from quire import __version__
from quire.extras import how_to_install

ROOT = Path(__file__).parent.parent
PACKAGES = ("server", "engine", "scheduler", "cache", "models")
UNLINKED_PACKAGES = ("engines", "storage", "workbench")
TERMS = (
    *("block", "slot", "block table", "request", "chunk", "step", "batch", "token budget"),
    *("admit", "grow", "cache", "prefix hit", "release", "evict", "preempt", "swap", "fork"),
    *("null block", "prefill", "decode"),
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_a_link_at_the_top(package: str) -> None:
    link = ROOT / package
    assert link.readlink() == Path("src/quire") / package
    assert link.resolve() == ROOT.resolve() / "src/quire" / package
    assert (link / "__init__.py").is_file()


def test_every_package_is_known() -> None:
    packages = {path.parent.name for path in (ROOT / "src/quire").glob("*/__init__.py")}
    assert packages == {*PACKAGES, *UNLINKED_PACKAGES}
    assert not any((ROOT / package).is_symlink() for package in UNLINKED_PACKAGES)


def test_version_is_said_alike_everywhere() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert project["version"] == __version__
    assert re.search(rf"^## \[{re.escape(__version__)}\]", read("CHANGELOG.md"), re.MULTILINE)


def test_licence_is_there_and_named() -> None:
    assert "Apache License" in read("LICENSE")
    assert tomllib.loads(read("pyproject.toml"))["project"]["license"] == "Apache-2.0"


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extra: str | None = None) -> set[str]:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return {normalised(re.split(r"[^\w.-]", each)[0]) for each in wanted}


EXTRAS = ("otel", "plot", "ray", "terminal")
"""What some options and commands need; the rest of `src` runs without."""
BROUGHT = {"triton"}
"""By torch, on the machines that can use it; the rest of `src` runs without."""


def test_every_dependency_is_pinned() -> None:
    pins = [line for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    pinned = {normalised(pin.partition("==")[0]) for pin in pins}
    assert (
        declared().union(*map(declared, (*EXTRAS, "test", "docs", "fuzz", "browser"))) - pinned
        == set()
    )


def test_wheels_for_a_gpu_machine_are_of_dependencies() -> None:
    assert set(GPU_WHEELS) <= declared()


@pytest.mark.parametrize("extra", EXTRAS)
def test_page_says_how_an_extra_is_installed_as_the_errors_do(extra: str) -> None:
    (row,) = re.findall(rf"^\| `{extra}` \|.*$", read("docs/configuration.md"), re.MULTILINE)
    for command in re.findall("`.*?`", how_to_install(extra)):
        assert command in row


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_every_import_is_a_declared_dependency() -> None:
    names = {name for path in (ROOT / "src").rglob("*.py") for name in imported(path)}
    owners = packages_distributions()
    foreign = names - sys.stdlib_module_names - {"quire", "pydantic_core"}  # pydantic pins its core
    known = declared().union(BROUGHT, *map(declared, EXTRAS))
    unknown = {
        name for name in foreign if not known & set(map(normalised, owners.get(name, (name,))))
    }
    assert unknown == set()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_generated_table_is_fresh(table: Table) -> None:
    text = read(table.file)
    assert refreshed(text, table) == text, "run `make readme`"


def test_schema_of_the_metrics_is_fresh() -> None:
    assert metric_schema.metric_schema() == read(metric_schema.FILE), "run `make readme`"


@pytest.mark.parametrize("term", TERMS)
def test_term_is_explained(term: str) -> None:
    assert f"**{term}**" in read("docs/terms.md")


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        targets = re.findall(r"\]\(([^)#\s]+)|(?:src|srcset|href)=\"([^\"#]+)\"", text)
        for target in (a or b for a, b in targets):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_pages_name_files_that_exist() -> None:
    text = read("docs/life-of-a-request.md") + read("docs/terms.md") + read("docs/metrics.md")
    named = re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w/]*(?:\.py)?)`", text)
    assert len(named) > 10
    assert [path for path in named if not (ROOT / "src/quire" / path).exists()] == []


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    pages = sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert [int(name[:4]) for name in pages] == list(range(1, len(pages) + 1))
    listed = re.findall(r"\]\(([0-9][^)]*)\)", read("docs/decisions/README.md"))
    assert listed == pages
