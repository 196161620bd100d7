"""What was measured is kept whole, and the page of results shows the newest of each kind."""

from pathlib import Path

import msgspec
from bench.machine import Machine
from bench.records import RESULTS, Ratio, Record, WorkloadRecord, load, results_page, save
from bench.results import Medians, ServerFacts

CPU = Machine("Intel(R) Xeon(R)", 2, ("avx2", "avx512_bf16", "amx_bf16"), 480.0, 24.0)


def record(date: str, ratio: float, *, peer: str = "vllm", machine: Machine = CPU) -> Record:
    servers = (ServerFacts("quire", "0.1.0", "", 0.0, 1.0), ServerFacts(peer, "1", "", 0.0, 1.0))
    row = WorkloadRecord(
        "W2", "output tok/s", Medians(ratio, 1.0, 1.0), Medians(1.0, 1.0, 1.0), Ratio(ratio, 1, 9)
    )
    return Record(date, "abcdef0123", "command", "model", machine, 30.0, 2000.0, servers, (row,))


def test_records_come_back_as_they_were_kept_the_oldest_first(tmp_path: Path) -> None:
    new, old = record("2026-01-02 10:00 UTC", 2.0), record("2026-01-01 10:00 UTC", 1.5)
    for each in (new, old):
        save(each, tmp_path)
    assert load(tmp_path) == [old, new]


def test_page_shows_the_newest_of_each_machine_and_peer() -> None:
    amd = msgspec.structs.replace(
        record("2026-01-01 10:00 UTC", 1.25), machine=Machine("AMD EPYC", 2, ("avx2",), 32.0, 24.0)
    )
    page = results_page(
        [
            record("2026-01-01 10:00 UTC", 1.5),
            record("2026-01-01 11:00 UTC", 1.75),
            record("2026-01-01 12:00 UTC", 3.5, peer="llamacpp"),
            record("2026-01-01 13:00 UTC", 1.0, peer="quire-2"),
            amd,
        ]
    )
    assert [text for text in ("1.50", "1.75", "3.50", "1.00", "1.25") if f"**{text}**" in page] == [
        "1.75",
        "3.50",
        "1.25",
    ]
    assert page.index("## AMD, 2 cores, AVX2") < page.index("1.25") < page.index("## Intel, 2")
    assert "| *stale*" not in page


def test_what_is_a_day_older_than_the_newest_of_its_machine_is_stale() -> None:
    old, new = record("2026-01-01 10:00 UTC", 1.5), record("2026-01-03 10:00 UTC", 2.0, peer="b")
    (stale,) = [line for line in results_page([old, new]).splitlines() if ", *stale*" in line]
    assert "1.50" in stale


def test_the_page_is_fresh() -> None:
    assert RESULTS.read_text(encoding="utf-8") == results_page(load()), "python -m bench.records"
