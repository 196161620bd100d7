"""Comparisons on real weights: which peers run, with what, and the tables of what was recorded."""

from pathlib import Path

import pytest
from bench.machine import Machine
from bench.real import OPPONENTS, comparisons, parse
from bench.real_quality import QualityRecord, Score, load_all, quality_table
from bench.record_files import save_record
from bench.records import Ratio, Record, WorkloadRecord, real_table, results_page
from bench.results import Medians, ServerFacts

CPU = Machine("Intel(R) Xeon(R)", 2, ("avx2",), 480.0, 24.0)
ARGV = ["--models", "/models", "--data", "/data"]


def test_peers_without_a_program_are_left_out_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment = {"BENCH_LLAMACPP_PROGRAM": "/llama-server"}
    found = list(comparisons(parse(ARGV), environment))
    assert {settings.launches[1].program for settings in found} == {"/llama-server"}
    assert "vllm is left out: BENCH_VLLM_PROGRAM is not set" in capsys.readouterr().out


def test_each_opponent_has_its_own_weights_and_quire_the_options_beside_it() -> None:
    environment = {each.peer.program_variable: "/peer" for each in OPPONENTS.values()}
    argv = [*ARGV, "--only", "llamacpp-Q4_0", "--quire-args=--port 1", "--workloads", "W1,WA"]
    (settings,) = comparisons(parse(argv), environment)
    quire, peer = settings.launches
    assert quire.model_path == Path("/models/smollm2")
    assert quire.options == ("--quantization", "int4", "--port", "1")
    assert peer.label == "llamacpp-Q4_0"
    assert peer.model_path == Path("/models/smollm2-Q4_0.gguf")
    assert [each.name for each in settings.workloads] == ["W1", "WA"]


@pytest.mark.parametrize(
    "wrong", [["--only", "nobody"], ["--workloads", "W9"], ["--record", "--max-requests", "1"]]
)
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*ARGV, *wrong])


def record(model: str, prompts: str, ratio: float) -> Record:
    servers = (ServerFacts("quire", "0.1", "", 0.0, 1.0), ServerFacts("vllm", "1", "", 0.0, 1.0))
    medians = Medians(8.0, 1.0, 1.0), Medians(4.0, 1.0, 1.0)
    row = WorkloadRecord("W2", "output tok/s", *medians, Ratio(ratio, 1, 9))
    date = "2026-01-01 10:00 UTC"
    return Record(date, "abc", "x", model, CPU, 30.0, 2.0, servers, (row,), prompts=prompts)


def test_real_weights_are_kept_apart_from_random_ones() -> None:
    records = [record("bench-0.5b", "words", 1.5), record("smollm2", "MT-bench", 2.5)]
    page = results_page(records)
    assert page.index(": random weights") < page.index("1.50") < page.index(": real weights")
    assert "smollm2, MT-bench" in page
    assert "2.50" in real_table(records) and "1.50" not in real_table(records)
    assert "Not recorded" in real_table(records[:1])


def test_the_newest_qualities_are_shown_against_float32(tmp_path: Path) -> None:
    for day, int8 in (("2026-01-01 10:00 UTC", 30.0), ("2026-01-02 10:00 UTC", 10.2)):
        scores = (Score("float32", 10.0), Score("int8 weights", int8), Score("fp8", None, "why"))
        kept = QualityRecord(day, "abcdef0123", "command", "smollm2", CPU, 25000, scores)
        save_record(kept, tmp_path, day)
    alone = (Score("int8 weights", 10.1),)
    later = QualityRecord("2026-01-03 10:00 UTC", "fedcba9876", "", "smollm2", CPU, 9000, alone)
    save_record(later, tmp_path, later.date)
    table = quality_table(load_all(tmp_path))
    assert "| int8 weights | 10.1000 | +1.00% | 9,000 tokens, 2026-01-03, fedcba9 |" in table
    assert "| float32 | 10.0000 | +0.00% | 25,000 tokens, 2026-01-02, abcdef0 |" in table
    assert "| fp8 | refused | why |" in table
    assert "30.0" not in table and "10.2" not in table
    assert "Not recorded" in quality_table(load_all(tmp_path / "none"))
