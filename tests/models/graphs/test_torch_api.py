"""Calls that captures make of torch are taken by the installed version, and by the oldest and the
newest that `make gpu-apis` has fetched."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from tools.torch_api import faults

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "tools" / "torch_api.py"
VERSIONS = ("2.11.0", "2.14.1")


def test_the_installed_torch_takes_every_call() -> None:
    assert list(faults()) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_other_torches_take_every_call(version: str) -> None:
    python = ROOT / ".gpu-apis" / version / "bin" / "python"
    if not python.exists():
        pytest.skip(f"torch {version} is not here: `make gpu-apis` fetches it, some GB")
    done = subprocess.run([python, TOOL], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"torch {version}" in done.stdout


def test_a_name_or_a_parameter_that_is_gone_is_told() -> None:
    def capture_begin(graph: object, pool: tuple[int, int]) -> None:
        """Take no mode."""

    with patch.object(torch.cuda.CUDAGraph, "capture_begin", capture_begin):
        (fault,) = faults()
    assert "capture_error_mode" in fault
    with patch.object(torch, "Generator", object()):
        assert list(faults()) == [
            f"torch.Generator.{name}: there is none"
            for name in ("clone_state", "graphsafe_set_state")
        ]


def test_the_tool_says_what_it_looked_at() -> None:
    done = subprocess.run([sys.executable, TOOL], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"torch {torch.__version__}" in done.stdout
