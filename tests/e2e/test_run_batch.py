"""`quire run-batch` on the model in the box."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.batch_kills import check
from tests.server.apis.batches.batch_files import encode, line


@pytest.mark.long  # a server's batch goes on after a kill in every run, test_batches.py
def test_kills_lose_and_repeat_no_line() -> None:
    assert check(num_lines=60, num_kills=2, seed=1) == 60


def test_a_file_that_is_no_batch_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_bytes(encode([line("a"), line("a")]))
    command = ["run-batch", str(lines), str(tmp_path / "out.jsonl")]
    done = subprocess.run(
        [sys.executable, "-m", "quire.server.cli", *command],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Line 2 'custom_id' is that of line 1" in done.stderr
    assert not (tmp_path / "out.jsonl").exists()
