"""The acceptance of a GPU is rehearsed, small and on a CPU, so that no slip costs the time of one:
every check runs to its end and finds nothing wrong. Speeds mean nothing there.
"""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from bench.gpu.listed import STAGES
from bench.gpu.log import Log, Status

ROOT = Path(__file__).resolve().parents[2]
NAMES = tuple(check.name for checks in STAGES.values() for check in checks)
EVERY_RUN = ("receipt", "ceilings")
"""The checks that every run rehearses, one of each stage: an engine's receipt, and speeds that are
measured. `make long` rehearses all."""


def acceptance(*options: str) -> subprocess.CompletedProcess[str]:
    """Without `OMP_NUM_THREADS` and `TRITON_INTERPRET`, as a person would call it."""
    set_here = ("OMP_NUM_THREADS", "TRITON_INTERPRET")
    environment = {name: text for name, text in os.environ.items() if name not in set_here}
    return subprocess.run(
        [sys.executable, "-m", "bench.gpu_acceptance", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "names",
    [pytest.param(EVERY_RUN, id="some"), pytest.param(NAMES, id="all", marks=pytest.mark.long)],
)
def test_every_check_passes_its_rehearsal(names: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    only = ("--only", ",".join(names))
    done = acceptance("--rehearse", "--out", str(tmp_path), "--budget-s", "850", *only)
    assert done.returncode == 0, done.stdout + done.stderr
    for stage, checks in STAGES.items():
        attempts = Log(tmp_path / f"{stage}.jsonl").attempts()
        assert {check.name for check in checks} & {*names} == {*attempts}
        assert {each.end.status for each in attempts.values()} == {Status.PASSED}
        assert all(each.findings for each in attempts.values())
    assert len(list(tmp_path.iterdir())) <= 8
    new = str(tmp_path / "new")
    for after in (("--out", str(tmp_path)), ("--out", new, "--after", str(tmp_path))):
        again = acceptance("--rehearse", *after, "--budget-s", "1", *only)
        assert again.returncode == 0, "what has passed is not run again"
        assert "correctness: 0 checks in" in again.stdout


def test_a_check_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    done = acceptance("--rehearse", "--out", str(tmp_path), "--only", "graph-lama")
    assert done.returncode == 2
    assert "there is no check graph-lama; there are attention, " in done.stderr
    assert ", graph-llama, " in done.stderr


def test_a_budget_without_time_for_a_check_says_so_first(tmp_path: Path) -> None:
    names = ("--only", "attention-bfloat16,ceilings")
    done = acceptance("--rehearse", "--out", str(tmp_path), "--budget-s", "2", *names)
    assert done.returncode == 1
    first, *_ = done.stdout.splitlines()
    assert first.startswith("correctness: 1 checks in 1 s, ")
    assert first.endswith("; left out, by guess: attention-bfloat16")
    assert "attention-bfloat16: not run" in done.stdout and "ceilings: not run" in done.stdout


def bare(wheels: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """On this machine, whose Python has everything but the wheel."""
    command = [sys.executable, "-m", "bench.gpu.bare", "--wheels", str(wheels), "--out", str(out)]
    options = ("--rehearse", "--only", "ceilings", "--budget-s", "250")
    return subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.long  # its check is rehearsed in every run
def test_a_bare_machine_installs_what_was_brought_along(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    name = "brought_along"
    with ZipFile(wheels / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        about = f"{name}-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    done = bare(wheels, tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ceilings: passed" in done.stdout
    assert (tmp_path / "out" / "speed.jsonl").exists()


def test_a_bare_machine_without_wheels_is_told_how_to_have_them(tmp_path: Path) -> None:
    done = bare(tmp_path / "nothing", tmp_path / "out")
    assert done.returncode == 2
    assert "has no wheels; `make gpu-wheels` makes them" in done.stderr


def test_names_are_for_one_check_each() -> None:
    assert len(NAMES) == len({*NAMES})
    assert {*EVERY_RUN} <= {*NAMES}
