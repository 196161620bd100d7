"""The GPU's benchmark runs to its end, in small and on a CPU: its figures mean nothing there."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_it_runs(tmp_path: Path) -> None:
    command = ["-m", "bench.gpu", "--device", "cpu", "--sizes", "tiny", "--batches", "1,3"]
    done = subprocess.run(
        [sys.executable, *command, "--without-peer", "--folder", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for told in ("copy ", "decode 2 x 256", "prefill 256", "tiny: ", "batch 3: ", "first token of"):
        assert told in done.stdout
