"""`quire bench` with a server of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.server_process import eventually

BENCH = (sys.executable, "-m", "quire.server.cli", "bench")
ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
ENVIRON |= {"QUIRE_MODEL": "bundled"}


@pytest.mark.long  # each run measures servers that run: tests/workbench/bench/test_command.py
def test_bundled_model_is_started_measured_and_stopped(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    counts = ("--requests", "2", "--concurrency", "2", "--output-tokens", "6", "--repeats", "1")
    done = subprocess.run(
        [*BENCH, *counts, "--json", str(out), "--", "--num-threads", "1"],
        capture_output=True,
        text=True,
        env=ENVIRON,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("A: http://127.0.0.1:")
    report = json.loads(out.read_text())
    assert len(report["startup_s"]) == 1
    assert {run["workload"] for run in report["runs"]} == set(
        ("latency", "throughput", "prefix", "prefill")
    )
    for run in report["runs"]:
        assert run["figures"]["num_output_tokens"] == 12
        assert run["figures"]["output_tok_s"] > 0
    shared = next(run["figures"] for run in report["runs"] if run["workload"] == "prefix")
    assert shared["prompt_lengths"] == [544, 544]


def test_own_server_goes_when_the_benchmark_is_ended() -> None:
    with subprocess.Popen([*BENCH, "latency"], stderr=subprocess.DEVNULL, env=ENVIRON) as process:
        mine = psutil.Process(process.pid)
        # The server, its engine, and the process that has forked that one.
        assert eventually(lambda: len(mine.children(recursive=True)) == 3, 60)
        children = mine.children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert eventually(lambda: not any(child.is_running() for child in children), 10)


def test_server_that_does_not_start_is_told_with_its_log(tmp_path: Path) -> None:
    done = subprocess.run(
        [*BENCH, "latency", "--", str(tmp_path)],
        capture_output=True,
        text=True,
        env=ENVIRON,
        timeout=120,
    )
    assert done.returncode == 1
    assert "quire serve ended with 1" in done.stderr
    assert "config.json" in done.stderr
