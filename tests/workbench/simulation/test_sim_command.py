"""Tests of `quire sim`: what it prints, writes and refuses."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from quire.server.cli.main import main
from quire.workbench.simulation.cost.cost_file import load_cost, save_cost

SHAPE = "gamma:rate=20,cv=2,requests=40,prompt=20-200,output=3-30"


def run(*arguments: str) -> int:
    return main(["sim", *arguments])


def test_policies_are_told_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told, drawing = tmp_path / "x.json", tmp_path / "x.svg"
    objective = ("--slo-ttft-ms", "100", "--slo-itl-ms", "20")
    files = ("--json", str(told), "--plot", str(drawing))
    assert run(SHAPE, "--policy", "fcfs,priority,fair", *objective, *files) == 0
    printed = capsys.readouterr()
    for said in ("TTFT ms, p50 / p90 / p99", "goodput, requests/s", "preemptions", "prefix hits"):
        assert said in printed.out
    assert "simulating priority" in printed.err
    report = json.loads(told.read_bytes())
    assert [each["name"] for each in report["runs"]] == ["fcfs", "priority", "fair"]
    assert report["runs"][0]["figures"]["num_requests"] == 40
    shown = " ".join(ElementTree.parse(drawing).getroot().itertext())
    assert "Time to first token" in shown and "fair" in shown


def test_orders_of_the_queue_are_told_side_by_side(tmp_path: Path) -> None:
    told = tmp_path / "x.json"
    trace = "poisson:rate=200,requests=60,prompt=20-2000,output=3-30"
    limits = ("--max-num-seqs", "2", "--max-tokens", "300")
    orders = ("--queue-order", "arrival,shortest", "--policy", "fcfs,fair")
    assert run(trace, *limits, *orders, "--json", str(told)) == 0
    runs = json.loads(told.read_bytes())["runs"]
    names = ["fcfs", "fcfs, shortest", "fair", "fair, shortest"]
    assert [each["name"] for each in runs] == names
    arrival, shortest = (each["figures"] for each in runs[:2])
    assert arrival["num_requests"] == shortest["num_requests"] == 60
    assert shortest["first_token"] != arrival["first_token"]


def test_states_are_told_beside_keys_and_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "x.json"
    trace = "closed:concurrency=2,requests=12,shared=600,prompt=400,output=4"
    assert run(trace, "--num-recurrent-states", "40", "--json", str(told)) == 0
    printed = capsys.readouterr().out
    assert "keys and values found" in printed and "misses for want of a state" in printed
    (only,) = json.loads(told.read_bytes())["runs"]
    figures = only["figures"]
    assert 0 < figures["hit_rate"] < figures["kv_hit_rate"] and figures["num_without_state"] > 0
    few = ("--num-recurrent-states", "3", "--state-snapshot-interval", "0")
    assert run(trace, *few, "--json", str(told)) == 0
    (fewer,) = json.loads(told.read_bytes())["runs"]
    assert fewer["figures"]["num_requests"] == 12
    assert fewer["figures"]["hit_rate"] <= figures["hit_rate"]
    capsys.readouterr()
    assert run(trace) == 0
    assert "want of a state" not in capsys.readouterr().out


def test_options_of_states_need_states(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SHAPE, "--state-snapshot-interval", "64") == 2
    assert "pass --num-recurrent-states too" in capsys.readouterr().err
    engines = ("--engines", "2", "--prefill-engines", "1")
    assert run(SHAPE, "--num-recurrent-states", "8", *engines) == 2
    assert "states of recurrent layers stay" in capsys.readouterr().err


def test_a_sweep_tells_which_settings_keep_the_objective(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "x.json"
    limits = ("--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--json", str(told))
    assert run(SHAPE, "--sweep", "--slo-e2e-ms", "500", *limits) == 0
    assert "settings keep the objective" in capsys.readouterr().out
    swept = json.loads(told.read_bytes())["swept"]
    bears = [each["speed_up"] for each in swept]
    assert bears == sorted(bears, reverse=True) and bears[0] >= 1
    assert all((each["speed_up"] > 0) == (each["figures"]["good_share"] >= 0.99) for each in swept)


def test_fewer_requests_of_a_file_are_sent_faster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, told = tmp_path / "x.jsonl", tmp_path / "x.json"
    lines = [
        {"timestamp": 1000 * n, "input_length": 600, "output_length": 4, "hash_ids": [0, n + 1]}
        for n in range(9)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    assert run(str(trace), "--requests", "5", "--speed-up", "4", "--json", str(told)) == 0
    (only,) = json.loads(told.read_bytes())["runs"]
    assert only["figures"]["num_requests"] == 5
    assert 1.0 < only["figures"]["seconds"] < 1.2
    assert only["figures"]["hit_rate"] == pytest.approx(4 * 512 / (5 * 600), abs=1e-3)
    capsys.readouterr()


def test_engines_are_told_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = tmp_path / "x.json"
    engines = ("--engines", "4", "--prefill-engines", "0,1,2", "--link-gbit-s", "400")
    assert run(SHAPE, *engines, "--json", str(told)) == 0
    assert "keys and values sent, GB" in capsys.readouterr().out
    runs = json.loads(told.read_bytes())["runs"]
    assert [each["name"] for each in runs] == ["fcfs, 4", "fcfs, 1 + 3", "fcfs, 2 + 2"]
    assert [each["figures"]["sent_gb"] > 0 for each in runs] == [False, True, True]
    assert run(SHAPE, "--engines", "2") == 0
    assert "keys and values" not in capsys.readouterr().out


def test_a_cost_without_bytes_of_a_token_sends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = tmp_path / "cost.json"
    save_cost(
        replace(built_in := load_cost("h100-8b"), engine=replace(built_in.engine, token_bytes=0)),
        cost,
    )
    assert run(SHAPE, "--cost", str(cost), "--engines", "2") == 0
    assert run(SHAPE, "--cost", str(cost), "--engines", "2", "--prefill-engines", "1") == 2
    assert "engine.token_bytes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "TRACE is missing"),
        ((SHAPE, "--prefill-engines", "1"), "--prefill-engines 1 of --engines 1 leave none"),
        (
            (SHAPE, "--sweep", "--engines", "3", "--prefill-engines", "0,1"),
            "--sweep takes one number",
        ),
        (("poisson:rate=0",), "poisson:rate=0: rate is '0', must be a number above 0"),
        (("missing.csv",), "missing.csv: "),
        ((SHAPE, "--cost", "missing"), "there is no such file, and the built-in costs are"),
        ((SHAPE, "--sweep"), "--sweep needs an objective"),
        ((SHAPE, "--record", "x.flight"), "--record is for --calibrate"),
        ((SHAPE, "--client", "x.json"), "--client is for --calibrate"),
        (("--calibrate", "x.json"), "--calibrate needs a flight record"),
        ((SHAPE, "--calibrate", "x.json"), "leave TRACE out"),
        ((SHAPE, "--max-num-seqs", "4096"), "--max-num-batched-tokens is 2048, must be at least"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert told in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(SHAPE, "--plot", str(tmp_path / "x.png")) == 2
    assert "installed with the extra `plot`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--policy", "lifo"), ("--queue-order", "longest"), ("--slo-share", "2"), ("--speed-up", "0")],
)
def test_a_value_out_of_range_is_refused(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(SHAPE, flag, value)
    assert f"argument {flag}: expected" in capsys.readouterr().err
