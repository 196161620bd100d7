"""`quire serve` with something that cannot be served: an exit code, one line, no traceback."""

import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from tests.models.loading.unservable import (
    LLAMA,
    UNSERVABLE,
    UNSERVABLE_LATER,
    Unservable,
    write_unservable,
)

FAILED_START = 1


def start(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "quire.server.cli", "serve", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
    )


@pytest.mark.parametrize(
    "name", ["hqq", "lora", "gguf folder", "deberta", "classifier", "no head", "llava", "no heads"]
)
def test_what_is_no_model_to_serve_is_said_in_one_line_before_anything_else(
    name: str, tmp_path: Path
) -> None:
    case = UNSERVABLE[name]
    done = start(str(write_unservable(case, tmp_path)))
    assert (done.returncode, done.stdout) == (FAILED_START, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("quire serve: ") and case.why in line


def test_a_folder_without_a_tokenizer_is_said_at_once(tmp_path: Path) -> None:
    done = start(str(write_unservable(Unservable("", LLAMA), tmp_path)))
    assert (done.returncode, done.stdout) == (FAILED_START, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"quire serve: no tokenizer.json in {tmp_path}")


def test_what_only_the_engine_can_tell_is_said_without_a_traceback(tmp_path: Path) -> None:
    case = UNSERVABLE_LATER["vit"]
    folder = write_unservable(case, tmp_path)
    shutil.copy(str(files("quire.models") / "bundled" / "tokenizer.json"), folder)
    done = start(str(folder))
    assert done.returncode == FAILED_START
    (line,) = [line for line in done.stderr.splitlines() if "ERROR" in line]
    assert f"cannot start: {case.why}" in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [(("serve", "toy", "--port", "0"), ""), (("serve", "toy", "--port", "0"), "1"), (("-h",), "")],
)
def test_standard_output_that_takes_nothing_is_said_in_one_line(
    arguments: tuple[str, ...], unbuffered: str
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "quire.server.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    said = "quire: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (FAILED_START, said)


def test_a_start_that_fails_before_its_engine_process_ends_without_a_traceback() -> None:
    program = (
        "import sys\n"
        "sys.executable = '/nowhere/python'\n"
        "from quire.server.cli.main import main\n"
        "sys.exit(main(['serve', 'toy', '--port', '0', '--no-engine-standby']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == FAILED_START
    (line,) = done.stderr.splitlines()
    assert "cannot start: " in line
