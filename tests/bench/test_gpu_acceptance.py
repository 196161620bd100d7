"""The acceptance of a GPU is rehearsed whole, small and on a CPU, so that no slip costs the time of
a GPU: every check runs to its end and finds nothing wrong. Speeds mean nothing there. Of checks
that share their code, one is in every run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.gpu.listed import STAGES
from bench.gpu.log import Log, Status

ROOT = Path(__file__).resolve().parents[2]
LIKE_ANOTHER = {
    **dict.fromkeys(("attention-float16", "attention-float32"), "attention-bfloat16"),
    **dict.fromkeys(
        ("graph-llama", "graph-gemma2", "graph-gpt-oss", "graph-deepseek", "graph-long-rope"),
        "graph-refused",  # which then captures a model that can be
    ),
    "attention-int8": "attention-fp8",
    "device": "ceilings",
    "engine-waits": "engine-texts",
    "fidelity": "captures",
    "model-8b": "model-1b",
    "peer-8b": "peer-1b",
}
"""Checks that `make long` alone rehearses, and those that stand for them: the code is the same, and
numbers, families or the suites that are called are others."""


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
    "left_out",
    [pytest.param(LIKE_ANOTHER, id="usual"), pytest.param({}, id="all", marks=pytest.mark.long)],
)
def test_every_check_passes_its_rehearsal(left_out: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    names = [check.name for checks in STAGES.values() for check in checks]
    only = ("--only", ",".join(name for name in names if name not in left_out))
    done = acceptance("--rehearse", "--out", str(tmp_path), "--budget-s", "850", *only)
    assert done.returncode == 0, done.stdout + done.stderr
    for stage, checks in STAGES.items():
        attempts = Log(tmp_path / f"{stage}.jsonl").attempts()
        assert {check.name for check in checks} - {*left_out} == {*attempts}
        assert {each.end.status for each in attempts.values()} == {Status.PASSED}
        assert all(each.findings for each in attempts.values())
    assert len(list(tmp_path.iterdir())) <= 8
    again = acceptance("--rehearse", "--out", str(tmp_path), "--budget-s", "1", *only)
    assert again.returncode == 0, "what has passed is not run again"


def test_a_check_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    done = acceptance("--rehearse", "--out", str(tmp_path), "--only", "graph-lama")
    assert done.returncode == 2
    assert "there is no check graph-lama; there are attention, " in done.stderr
    assert ", graph-llama, " in done.stderr


def test_names_are_for_one_check_each() -> None:
    names = [check.name for checks in STAGES.values() for check in checks]
    assert len(names) == len(set(names))
    assert {*LIKE_ANOTHER} | {*LIKE_ANOTHER.values()} <= {*names}
    assert not {*LIKE_ANOTHER} & {*LIKE_ANOTHER.values()}
