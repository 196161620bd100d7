"""The GPU's benchmarks run to their end, in small and on a CPU: figures mean nothing there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def output_of(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_models_and_kernels_are_measured(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--sizes", "tiny", "--batches", "1,3")
    said = output_of("bench.gpu", *options, "--without-peer", "--folder", str(tmp_path))
    for told in ("copy ", "decode 2 x 256", "prefill 256", "tiny: ", "batch 3: ", "first token of"):
        assert told in said


def test_tiles_are_tried_out() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    said = output_of("bench.gpu_tiles", "--device", "cpu", "--widths", "32")
    for told in ("decode 1 x 32", "fp8_e4m3: taken 64 rows, 128 keys", "16 rows, 32 keys, "):
        assert told in said
