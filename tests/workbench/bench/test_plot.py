"""What `quire bench --plot` draws, and what it says where it cannot."""

import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from quire.server.cli.main import main
from quire.workbench.bench.figures import Samples
from quire.workbench.bench.plot import draw
from quire.workbench.bench.ratios import WorkloadRun
from quire.workbench.bench.report import BenchReport, ServerFacts
from quire.workbench.bench.workloads import WORKLOADS
from tests.workbench.bench.test_ratios import GOOD

LATENCY = WORKLOADS["latency"]
SERVERS = tuple(
    ServerFacts(label, f"http://{label.lower()}.test", "1", "a-model", "/v1/completions", True)
    for label in "AB"
)
TIMED = replace(GOOD, samples=Samples((10.0, 30.0), (1.0, 2.0, 90.0), (100.0, 120.0)))


def report_of(*runs: WorkloadRun, servers: tuple[ServerFacts, ...] = SERVERS) -> BenchReport:
    return BenchReport(
        date="today",
        command="quire bench",
        quire="0",
        python="3",
        machine="here",
        seed=1,
        prompts="words",
        notes=(),
        servers=servers,
        startup_s=(2.0, 3.0),
        workloads=(LATENCY,) if runs else (),
        runs=runs,
    )


COMPARED = report_of(*(WorkloadRun("latency", label, n, TIMED) for n in range(2) for label in "AB"))


def texts_of(drawing: Path) -> str:
    return " ".join(ElementTree.parse(drawing).getroot().itertext())


def test_picture_shows_distributions_with_units_and_servers(tmp_path: Path) -> None:
    drawing = tmp_path / "x.svg"
    draw(COMPARED, drawing)
    shown = texts_of(drawing)
    for title in ("Time to first token", "Inter-token latency", "End-to-end time"):
        assert f"latency: {title}" in shown
    for said in ("latency: tokens per second by round", "startup: time until ready", "ms", "100%"):
        assert said in shown
    assert "A: http://a.test, a-model" in shown and "B: http://b.test, a-model" in shown
    assert "median of A: 20.0 ms" in shown and "median of B: 110 ms" in shown


def test_suffix_says_the_format(tmp_path: Path) -> None:
    for suffix, begins in ((".png", b"\x89PNG\r\n"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")):
        drawing = tmp_path / f"x{suffix}"
        draw(COMPARED, drawing)
        assert drawing.read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (report_of(servers=()), "startup: time until ready"),
        (report_of(WorkloadRun("latency", "A", 0, GOOD)), "nothing was timed"),
    ],
)
def test_little_to_show_is_drawn_too(report: BenchReport, said: str, tmp_path: Path) -> None:
    drawing = tmp_path / "x.svg"
    draw(report, drawing)
    assert said in texts_of(drawing)


def test_missing_library_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "--url", "http://127.0.0.1:1", "--plot", str(tmp_path / "x.png")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("quire bench: --plot needs matplotlib")
    assert "`make install EXTRAS=plot`" in error


def test_other_formats_are_refused_by_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--plot", str(tmp_path / "x.gif")])
    assert "--plot: expected a file that ends in .png or .svg" in capsys.readouterr().err
