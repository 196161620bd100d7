"""Launches find their programs, and what is published names no folder."""

from pathlib import Path

import pytest
from bench.machine import without_folders
from bench.settings import parse_settings


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").touch()
    return tmp_path


def test_program_comes_from_option_then_environment(model_dir: Path) -> None:
    environment = {"BENCH_TRANSFORMERS_PROGRAM": "/venv/python", "BENCH_QUIRE_PROGRAM": "/other"}
    argv = ["--model", str(model_dir), "--quire-program", "/mine", "--quire-args=--a 'b c'"]
    first, second = parse_settings(argv, environment).launches
    assert first.command(port=1234)[:3] == ["/mine", "-m", "quire.server.cli"]
    assert first.command(port=1234)[-2:] == ["--a", "b c"]
    assert second.command(port=1234)[0] == "/venv/python"
    assert second.peer.model_name(second.model_path) == str(model_dir)


def test_two_servers_of_a_kind_have_two_labels(model_dir: Path) -> None:
    argv = ["--model", str(model_dir), "--peer", "quire", "--workloads", "W3,W1"]
    settings = parse_settings(argv, {})
    assert [launch.label for launch in settings.launches] == ["quire", "quire-2"]
    assert [workload.name for workload in settings.workloads] == ["W3", "W1"]


@pytest.mark.parametrize(
    "wrong", [["--workloads", "W9"], ["--repeats", "0"], ["--record", "--max-requests", "2"]]
)
def test_wrong_options_are_refused(model_dir: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(["--model", str(model_dir), *wrong], {})


def test_published_command_names_no_folder() -> None:
    command = "python -m bench.compare --model /a/b/bench-15m --json=/x/y.json --logs ~/z/logs"
    assert without_folders(command) == (
        "python -m bench.compare --model bench-15m --json=y.json --logs logs"
    )
