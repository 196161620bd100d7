"""`quire doctor`: what it tells of this machine, and of machines on which something is wrong."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from quire.engine.startup.self_test import BUNDLED
from quire.models.native import library
from quire.server.cli.settings import read_config
from quire.workbench.doctor.finding import Finding, Level, Section, fail, ok, warn
from quire.workbench.doctor.hardware import cpu_findings, memory_findings
from quire.workbench.doctor.model import model_findings
from quire.workbench.doctor.reach import port_finding
from quire.workbench.doctor.report import json_of, lines_of
from quire.workbench.doctor.trial import load_finding
from tests.models.loading.unservable import UNSERVABLE, write_unservable

FIXTURES = Path(__file__).parents[2] / "models/loading/published/fixtures"
NOBODY = "http://127.0.0.1:9"
"""Nothing listens there."""


def by_subject(report: Mapping[str, list[Mapping[str, object]]]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for section in report["sections"]:
        findings = section["findings"]
        assert isinstance(findings, list)
        found.update({each["subject"]: each for each in findings})
    return found


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, object]]:
    """The findings of this machine by their subjects, with a hub that does not answer."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    done = subprocess.run(
        [sys.executable, "-m", "quire.server.cli", "doctor", "--json"],
        env={**kept, "QUIRE_PORT": "0", "HF_ENDPOINT": NOBODY},
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert done.returncode == (0 if found["is_well"] else 1)
    assert found["is_well"] is (library() is not None)
    return by_subject(found)


def figures(finding: Mapping[str, object]) -> dict[str, float]:
    found = finding["figures"]
    assert isinstance(found, dict)
    return found


@pytest.mark.long  # the whole examination, ten seconds; every run has one without a trial
def test_it_names_instruction_set_and_kernels(report: dict[str, dict[str, object]]) -> None:
    built = library()
    if built is None:
        assert report["C++ kernels"]["level"] == "fail"
        return
    assert report["instruction set"]["text"] == f"{built.isa}, the best of this CPU"
    assert report["linear layers"]["text"]
    assert "paged attention" in str(report["other kernels"]["text"])


@pytest.mark.long
def test_it_measures_bandwidth_and_tries_the_bundled_model(
    report: dict[str, dict[str, object]],
) -> None:
    assert figures(report["bandwidth"])["read_gb_s"] > 0.1
    assert figures(report["products"])["gflop_s"] > 0.1
    decode, fidelity = figures(report["decode"]), figures(report["fidelity"])
    assert decode["step_ms"] > 0 and decode["floor_ms"] > 0
    assert decode["tokens_s"] == pytest.approx(1e3 / decode["step_ms"])
    assert fidelity["num_equal"] == fidelity["num_tokens"] > 50


@pytest.mark.long
def test_a_hub_that_does_not_answer_is_a_warning_with_the_reason(
    report: dict[str, dict[str, object]],
) -> None:
    hub = report["hub"]
    assert (hub["level"], "refused" in str(hub["text"])) == ("warn", True)
    assert "HF_ENDPOINT" in str(hub["advice"])


def test_an_install_without_extras_and_wrong_variables_are_told_to_people() -> None:
    """It is run where something is broken, so it needs no library of the terminal."""
    code = (
        "import sys\n"
        "for name in ('rich', 'prompt_toolkit', 'httpx'): sys.modules[name] = None\n"
        "from quire.server.cli.main import main\n"
        "sys.exit(main(['doctor', '--no-self-test']))"
    )
    wrong = {"QUIRE_MAX_NUM_SEQ": "3", "QUIRE_MAX_NUM_SEQS": "many", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "QUIRE_PORT": "0", **wrong},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and done.stderr == ""
    assert "  ok    Python: " in done.stdout and "Self-test" not in done.stdout
    assert "  ok    hub: offline" in done.stdout
    assert "  warn  variables: QUIRE_MAX_NUM_SEQ is set but no option reads it" in done.stdout
    assert "  fail  variables: QUIRE_MAX_NUM_SEQS" in done.stdout


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert port_finding("127.0.0.1", port).level is Level.WARN
    assert port_finding("127.0.0.1", 0).level is Level.OK
    assert port_finding("203.0.113.1", 80).level is Level.WARN


def test_a_busy_machine_is_told() -> None:
    assert load_finding(0.4, 2).level is Level.OK
    assert load_finding(5.1, 2).level is Level.WARN


def test_cores_and_memory_are_those_of_this_process() -> None:
    (cpu,) = [each for each in cpu_findings() if each.subject == "CPU"]
    assert cpu.figures["num_usable_cpus"] == len(os.sched_getaffinity(0))
    (memory,) = memory_findings()
    if memory.level is Level.OK:
        assert 0 < memory.figures["total_bytes"] <= psutil.virtual_memory().total


def test_a_report_says_what_to_do_and_whether_all_is_well() -> None:
    section = Section("Things", (ok("a", "good"), warn("b", "slow", "wait"), fail("c", "no", "go")))
    assert list(lines_of(section)) == [
        *("Things", "  ok    a: good", "  warn  b: slow", "        -> wait"),
        *("  fail  c: no", "        -> go"),
    ]
    assert json.loads(json_of([section]))["is_well"] is False
    assert json.loads(json_of([Section("Things", (warn("b", "slow", "wait"),))]))["is_well"]


def model_findings_of(name: str, **variables: str) -> dict[str, Finding]:
    config = read_config({"positional_model": name}, variables)
    return {each.subject: each for each in model_findings(name, config.model.engine)}


def test_a_model_is_told_with_its_kernels_and_cost() -> None:
    found = model_findings_of(BUNDLED)
    assert {each.level for each in found.values()} == {Level.OK}
    assert "says the same alone" in found["code"].text
    assert "in one call" in found["layers"].text
    assert found["memory"].figures["weight_bytes"] > 2**20
    assert found["speed"].figures["floor_ms"] > 0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mlx", "MLX (4 bits), 16 of 21 weights, 5.7 bits a number"),
        pytest.param(
            "modelopt-nvfp4",
            "ModelOpt (NVFP4), 14 of 21 weights, 4.5 bits a number",
            marks=pytest.mark.long,
        ),
    ],
)
def test_how_weights_were_quantised_is_told(name: str, told: str) -> None:
    found = model_findings_of(str(FIXTURES / name))
    assert {each.level for each in found.values()} == {Level.OK}
    assert found["format"].text == f"weights are quantised: {told}"


def test_a_model_that_does_not_fit_is_told_what_would() -> None:
    found = model_findings_of(BUNDLED, QUIRE_KV_CACHE_TOKENS="64")
    assert (found["memory"].level, "--max-model-len" in found["memory"].advice) == (
        Level.FAIL,
        True,
    )


@pytest.mark.parametrize("name", ["hqq", "clip", "gguf folder"])
def test_a_model_that_is_not_served_is_told_why(name: str, tmp_path: Path) -> None:
    folder = write_unservable(UNSERVABLE[name], tmp_path / "model")
    (found,) = model_findings_of(str(folder)).values()
    assert (found.level, found.subject) == (Level.FAIL, "model")
    assert UNSERVABLE[name].why in found.text
