"""The line at the end of a run that says why tests were skipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOME = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_of_tiles(number):
    pytest.skip("this CPU lacks AMX")

@pytest.mark.skipif(True, reason="triton is not installed")
def test_of_a_gpu():
    pass

def test_that_runs():
    pass
"""


def last_lines(folder: Path, *flags: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.skips", *flags, str(folder)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("flags", [(), ("-n", "2")], ids=["one process", "two"])
def test_skipped_tests_are_counted_by_their_reasons(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "test_some.py").write_text(SOME)
    said = last_lines(tmp_path, *flags)
    assert "4 skipped: this CPU lacks AMX (3), triton is not installed (1)\n" in said


def test_a_run_without_skips_says_nothing_of_them(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("def test_that_runs():\n    pass\n")
    assert "skipped" not in last_lines(tmp_path)
