"""A server whose engine is killed leaves a file that `quire replay` decides the same."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.server_process import ServerProcess, eventually, server_process

BEGINNING = "Once upon a time there was a cat. " * 20


def replayed(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire.server.cli", "replay", "--json", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )


def ask(server: ServerProcess, number: int) -> None:
    prompt = BEGINNING + "word " * (10 * number)
    ends = {"max_tokens": 100, "ignore_eos": True}
    body = {"prompt": prompt, "n": 1 + number % 2, "seed": number, **ends}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=100).raise_for_status()


def test_a_killed_engine_leaves_a_record_that_is_replayed(tmp_path: Path) -> None:
    flags = ("--max-num-seqs", "6", "--flight-recorder-dir", str(tmp_path / "a"))
    with server_process(*flags) as server, ThreadPoolExecutor(12) as clients:
        asked = [clients.submit(ask, server, number) for number in range(24)]
        tokens = "quire:generation_tokens_total"
        assert eventually(lambda: server.metric(tokens) > 400, 60)
        server.engine_process().kill()
        for each in asked:
            each.result()
        written = "quire:flight_records_written_total"
        assert eventually(lambda: server.metric(written) == 1, 20)
    (path,) = (tmp_path / "a").glob("*.flight")
    done = replayed(path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["is_same"] and report["num_steps"] > 10
    assert report["num_arrivals"] >= 6 and report["requests"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.long  # that of one which was killed is in every run
def test_a_record_of_a_busy_engine_is_replayed(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    flags = ("--max-num-seqs", "6", "--flight-recorder-dir", str(folder))
    with server_process(*flags) as server, ThreadPoolExecutor(12) as clients:
        asked = [clients.submit(ask, server, number) for number in range(24)]
        assert eventually(lambda: server.metric("quire:generation_tokens_total") > 400, 60)
        (model,) = httpx.get(f"{server.url}/v1/models").json()["data"]
        path = f"{server.url}/v1/models/{model['id']}/flight_record"
        replies = [httpx.post(path, timeout=30).raise_for_status().json() for _ in range(3)]
        for each in asked:
            each.result()
    assert len(list(folder.iterdir())) == 3
    for said in replies:
        done = replayed(Path(said["path"]))
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["is_same"] and report["num_steps"] == said["steps"] > 10
        assert report["requests"] and said["began"] <= said["ended"]
        assert Path(said["path"]).stat().st_size == said["bytes"]


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"something else")
    done = replayed(path)
    assert done.returncode == 2
    assert "this is no file of a flight recorder" in done.stderr
