"""What `make` would do in a fresh clone, read from its dry run: serving installs no test package,
and nothing is installed twice.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tools.requirements import requirements

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="GNU make is not installed")


def dry_run(*words: str, venv: Path) -> str:
    """The commands, with `venv` as the environment that is to be made."""
    asked = ["make", "--dry-run", "--no-print-directory", *words, f"VENV={venv}"]
    path = {"PATH": os.environ["PATH"]}  # not what a `make` that runs these tests was told
    done = subprocess.run(asked, cwd=ROOT, env=path, check=True, capture_output=True, text=True)
    return done.stdout


def installed(commands: str) -> list[str]:
    """What each call of pip names, behind its options."""
    return [line.split()[-1] for line in commands.splitlines() if "/pip install" in line]


def test_serve_installs_what_serving_needs_and_no_more(tmp_path: Path) -> None:
    commands = dry_run("serve", "ARGS=a/model", venv=tmp_path)
    assert installed(commands) == ["."]
    assert commands.endswith(f"{tmp_path}/bin/quire serve a/model\n")
    assert not re.search("test|otel", "".join(requirements()))


@pytest.mark.parametrize(
    ("words", "served"), [((), " "), (("MODEL=bundled", "ARGS=--port 1"), " bundled --port 1")]
)
def test_serve_takes_a_model(words: tuple[str, ...], served: str, tmp_path: Path) -> None:
    assert dry_run("serve", *words, venv=tmp_path).endswith(f"{tmp_path}/bin/quire serve{served}\n")


def test_test_adds_the_rest_once(tmp_path: Path) -> None:
    commands = dry_run("test", venv=tmp_path)
    extras = [f"{tmp_path}/requirements-{extra}.txt" for extra in ("test", "docs")]
    assert installed(commands) == [".", *extras]
    assert commands.count("-m venv") == 1
    (tmp_path / ".ready-serve").touch()
    assert installed(dry_run("test", venv=tmp_path)) == extras
    for name in (".ready-test", ".ready-docs"):
        (tmp_path / name).touch()
    assert installed(dry_run("test", venv=tmp_path)) == []
    assert installed(dry_run("serve", venv=tmp_path)) == []


def test_extras_are_installed_beside_what_is_there(tmp_path: Path) -> None:
    (tmp_path / ".ready-serve").touch()
    wanted = [f"{tmp_path}/requirements-otel.txt", f"{tmp_path}/requirements-test.txt"]
    assert installed(dry_run("install", "EXTRAS=otel,test", venv=tmp_path)) == wanted
    assert installed(dry_run("serve", "EXTRAS=otel", venv=tmp_path)) == wanted[:1]


def test_an_extra_that_does_not_exist_is_named() -> None:
    assert "opentelemetry-sdk" in "".join(requirements("otel"))
    with pytest.raises(ValueError, match="no extra 'otle': there is otel, "):
        requirements("otle")


def test_clients_have_an_environment_for_each_group_of_pins(tmp_path: Path) -> None:
    commands = dry_run("--always-make", "clients", venv=tmp_path)
    groups = {path.stem for path in (ROOT / "tests/e2e/clients/requirements").glob("*.txt")}
    made = re.findall(r"-m venv \.clients/venv-(\S+)", commands)
    assert sorted(made) == sorted(groups)
    for group in groups:
        assert re.search(rf"venv-{group}/bin/pip install .*/{group}\.txt", commands)
    assert "npm install --prefix .clients --" in commands
    assert "npm install --prefix .clients/node-agents --" in commands
    assert not re.search(r"pip install .*/node", commands)
