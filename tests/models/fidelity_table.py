"""What the fidelity tests found, one line for each family, shown at the end: whether they ran in
one process or in several.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

import pytest

from quire.models.config import LayerFacts, ModelFacts


@dataclass(slots=True)
class Row:
    family: str
    layers: str = ""
    widths: str = ""
    num_groups: int = 0
    num_tokens: int = 0
    is_exact: bool | None = None
    error: float | None = None
    """The largest of any logit, as a part of the largest logit."""

    def describe(self, facts: ModelFacts, num_groups: int) -> None:
        kinds = [kind_of(layer) for layer in facts.layers]
        self.layers = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        widths = (f"{layer.head_size}/{layer.v_head_size}" for layer in facts.layers)
        self.widths = ", ".join(dict.fromkeys(widths))
        self.num_groups = num_groups


Rows = dict[str, Row]
TEXTS = {None: "-", True: "exact", False: "DIFFERS"}
"""None where texts are not compared in this run, but by `make long`."""
ROWS = pytest.StashKey[Rows]()


class Worker(Protocol):
    """What pytest-xdist knows of a process that ran tests."""

    config: pytest.Config


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of several tells the first what it found."""
    told: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if told is not None:
        rows = session.config.stash.get(ROWS, {})
        told["fidelity"] = [asdict(row) for row in rows.values()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Worker) -> None:
    """A file is tested by one process, and so a row is whole."""
    rows: Rows = node.config.stash.setdefault(ROWS, {})
    for row in getattr(node, "workeroutput", {}).get("fidelity", []):
        rows[row["family"]] = Row(**row)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = terminalreporter.config.stash.get(ROWS, {})
    if rows:
        terminalreporter.write_sep("-", "fidelity to transformers")
        for line in lines(rows.values()):
            terminalreporter.write_line(line)


def kind_of(layer: LayerFacts) -> str:
    if layer.is_latent:
        return "latent"
    if layer.chunk_size is not None:
        return f"chunk {layer.chunk_size}"
    return "full" if layer.window_size is None else f"window {layer.window_size}"


def lines(rows: Iterable[Row]) -> Iterator[str]:
    yield _line("family", "layers", "K/V widths", "groups", "tokens", "text", "logit error")
    for row in rows:
        yield _line(
            row.family,
            row.layers,
            row.widths,
            str(row.num_groups),
            str(row.num_tokens),
            TEXTS[row.is_exact],
            "-" if row.error is None else f"{row.error:.0e}",
        )


def _line(*cells: str) -> str:
    widths = (40, 24, 14, 7, 7, 8, 11)
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
