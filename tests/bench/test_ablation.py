"""Each optimisation has a comparison with and without it, and the newest gains are in a table."""

from pathlib import Path

import msgspec
import pytest
from bench.ablation import ABLATIONS, gain_tables, parse_settings
from bench.machine import Machine
from bench.records import Ratio, Record, WorkloadRecord
from bench.results import Medians, ServerFacts

from quire.models.optimizations import Optimization
from quire.server.cli.arguments import build_parser
from quire.server.cli.settings import read_config

AMD = Machine("AMD EPYC", 2, ("avx2", "avx512_vnni", "avx512_bf16"), 32.0, 24.0)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("bench-0.5b", "bench-15m"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").touch()
    return tmp_path


def test_every_optimisation_can_be_measured_where_a_cpu_has_it() -> None:
    not_here = {
        Optimization.AVX2,  # a CPU without AVX2 is not one to serve on
        Optimization.FORCED_TOKENS,  # the workloads have no grammars: bench.structured measures it
        Optimization.GROUPED_WEIGHTS,  # no model of the workloads is stored in groups
        Optimization.PLANNED_SNAPSHOTS,  # no prompts share beginnings: bench.served_snapshots
        Optimization.LAST_SNAPSHOTS,  # measures both
    }
    assert {name for name in Optimization if name not in ABLATIONS} == not_here
    skipped = {name for name, each in ABLATIONS.items() if each.why_not(AMD) is not None}
    assert skipped == {"amx"}


def test_both_servers_differ_in_the_switch_alone(models: Path) -> None:
    settings = parse_settings(["--models", str(models)])
    assert settings is not None
    for ablation, each in settings.comparisons():
        first, second = (launch.command(1)[5:] for launch in each.launches)
        assert second == [*first, *ablation.switch]
        with_it, without = (config_of(argv) for argv in (first, second))
        assert with_it != without


def config_of(argv: list[str]) -> object:
    """Return the values of the flags after `serve MODEL`."""
    arguments = vars(build_parser().parse_args(["serve", "model", *argv]))
    del arguments["command"]
    return read_config(arguments, {}).model.engine


def test_only_what_is_named_is_measured_on_its_model(models: Path) -> None:
    settings = parse_settings(
        ["--models", str(models), "--only", "w8a8", "--workloads", "W5,W2", "--scale", "0.26"]
    )
    assert settings is not None
    found = [
        (ablation.name, each.model_dir.name, [(w.name, w.num_requests) for w in each.workloads])
        for ablation, each in settings.comparisons()
    ]
    assert found == [("w8a8", "bench-15m", [("W5", 67)]), ("w8a8", "bench-0.5b", [("W2", 17)])]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--only", "mmx"], "no such name: mmx; there are linears, attention"),
        (["--workloads", "W3"], "no such name: W3; there are W1, W2, W4, W5"),
        (["--scale", "0"], "must be above 0"),
        (["--models", "/no/such"], "holds no tokenizer.json"),
    ],
)
def test_what_is_wrong_is_named(
    models: Path, wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_settings(["--models", str(models), *wrong])
    assert said in capsys.readouterr().err


def record(date: str, peer: str, workload: str, ratio: float) -> Record:
    servers = (
        ServerFacts("quire", "0.1.0", "--dtype bfloat16", 0.0, 1.0),
        ServerFacts(peer, "0.1.0", "", 0.0, 1.0),
    )
    none = Medians(1.0, 1.0, 1.0)
    row = WorkloadRecord(workload, "output tok/s", none, none, Ratio(ratio, ratio, ratio))
    return Record(date, "abcdef0123", "command", "model", AMD, 30.0, 2000.0, servers, (row,), 0.5)


def test_table_has_the_newest_gain_of_each_optimisation_and_workload() -> None:
    without = "quire-without-huge-pages"
    intel = msgspec.structs.replace(
        record("2026-01-01 10:00 UTC", without, "W1", 1.75),
        machine=Machine("Intel", 2, ("amx_bf16",), 480.0, 24.0),
    )
    text = gain_tables(
        [
            record("2026-01-01 11:00 UTC", without, "W1", 1.25),
            record("2026-01-01 10:00 UTC", without, "W1", 1.5),
            record("2026-01-01 10:00 UTC", without, "W5", 1.0),
            record("2026-01-01 12:00 UTC", "quire-without-linears", "W2", 2.5),
            record("2026-01-01 13:00 UTC", "vllm", "W2", 3.5),
            intel,
        ]
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [number for number in ("1.25", "1.50", "1.00", "2.50", "3.50") if number in text] == [
        "1.25",
        "1.00",
        "2.50",
    ]
    assert text.index("AMD, 2 cores") < text.index("2.50") < text.index("1.25")
    assert text.index("Intel, 2 cores") < text.index("1.75")
    assert all("0.5 of the requests" in row for row in rows if "**" in row)
