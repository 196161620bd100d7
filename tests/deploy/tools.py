"""The tools that know what `deploy/` is written for; a test that lacks one is skipped."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
VENV = ROOT / ".deploy" / "venv" / "bin"
MAKE = "`make deploy-check` installs it"


def tool(name: str, comes_from: str) -> str:
    """The path of a program, from `.deploy` or the system."""
    own = VENV / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: {comes_from}")
    return found


def run(*words: str | Path) -> str:
    """Return what a program says. Raises AssertionError where it fails."""
    done = subprocess.run([str(each) for each in words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(script: str, *words: object) -> Any:
    """The JSON that a script prints, run where `make deploy-check` installs packages."""
    if not (VENV / "python").exists():
        pytest.skip(f"Helm and Kubernetes' schemas are not installed: {MAKE}")
    return json.loads(run(VENV / "python", "-c", script, *(json.dumps(each) for each in words)))


def read_yaml(path: Path) -> Any:
    """The one document of a file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))
