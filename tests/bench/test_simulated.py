"""Traces are sent as they say, and simulated runs are shown beside real ones."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from bench.machine import Machine
from bench.pairs import Pair
from bench.simulated_records import SimulatedRecord, TraceRow, simulated_table
from bench.trace_clients import Asked, play

from quire.workbench.bench.exchange import parse_address
from quire.workbench.simulation.traces.read import read_trace
from tests.server.served import MODEL, Served, plain_config, serving

PAIR = Pair(90.0, 100.0)
ROW = TraceRow("W2", "closed:concurrency=32", {"first_token": (PAIR, Pair(3.0, 2.0))}, PAIR)
MACHINE = Machine("AMD EPYC", 2, ("avx2",), 32.0, 16.0)
RECORD = SimulatedRecord(
    "2026-01-02 03:04 UTC", "abc", "python -m ...", MACHINE, 0.1, "small", "a fit", (ROW,)
)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(plain_config()) as running:
        yield running


@pytest.mark.parametrize("trace", ["closed:concurrency=2", "poisson:rate=200"])
def test_each_request_of_a_trace_is_sent(served: Served, trace: str) -> None:
    load = read_trace(f"{trace},requests=6,prompt=5-9,output=2-4", 0).load
    begun = len(served.engine.submitted)
    played = play(load, Asked(parse_address(served.url), MODEL, 1000), trace)
    sent = served.engine.submitted[begun:]
    lengths = [(len(each.prompt_token_ids), each.stopping.max_tokens) for each in sent]
    assert sorted(lengths) == sorted(
        (each.num_prompt_tokens, each.num_output_tokens) for each in load.requests
    )
    assert len({each.prompt_token_ids for each in sent}) == len(sent)
    assert played.output_tok_s > 0
    assert played.first_token.p50_ms is not None and played.end_to_end.p99_ms is not None


def test_a_request_that_fails_ends_it(served: Served) -> None:
    load = read_trace("closed:concurrency=1,requests=1,prompt=5,output=2", 0).load
    with pytest.raises(SystemExit, match="1 of 1 requests failed"):
        play(load, Asked(parse_address(served.url), "no-such-model", 1000), "0")


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = RECORD.save(tmp_path)
    assert path.name == "2026-01-02-03-04.json"
    assert msgspec.json.decode(path.read_bytes(), type=SimulatedRecord) == RECORD


def test_the_table_shows_errors() -> None:
    text = simulated_table(RECORD)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["W2", "TTFT", "90.0", "100.0", "-10 %", "3.0", "2.0", "+50 %"] in lines
    assert "2 cores of AMD EPYC" in text and "`closed:concurrency=32`" in text
