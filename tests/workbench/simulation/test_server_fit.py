"""The server's part of a time to first token: told by a client that was alone."""

import json
from array import array
from pathlib import Path

import pytest

from quire.scheduler.snapshot.arrival import ArrivalSnapshot
from quire.workbench.simulation.cost.cost_file import CostFileError
from quire.workbench.simulation.cost.server_fit import LoneClient, fit_server, read_lone_client
from quire.workbench.simulation.recorded import RecordedAnswer

CLIENT = LoneClient((0.104, 0.106, 0.2), (128, 128))


def answer(
    added_s: float, first_s: float, num_prompt: int = 128, *, has_ended: bool = True
) -> RecordedAnswer:
    """One whose first token comes after `first_s`, and its last half a second after that."""
    times_s = array("d", (added_s + first_s, added_s + first_s + 0.5))
    return RecordedAnswer(ArrivalSnapshot("r", num_prompt, 2), added_s, (), times_s, has_ended)


def test_answers_that_were_not_alone_tell_nothing_of_the_server() -> None:
    alone = [answer(0.0, 0.1), answer(2.0, 0.1)]
    others = [answer(4.0, 0.9), answer(4.8, 0.9), answer(8.0, 0.7, 1000)]
    unfinished = answer(10.0, 0.8, has_ended=False)
    cost = fit_server([[*others, *alone, unfinished]], CLIENT)
    assert cost.request_latency_s == pytest.approx(0.006)


def test_answers_of_several_records_do_not_disturb_each_other() -> None:
    cost = fit_server([[answer(0.0, 0.1)], [answer(0.2, 0.1)]], CLIENT)
    assert cost.request_latency_s == pytest.approx(0.006)


def test_a_server_adds_no_less_than_nothing() -> None:
    assert fit_server([[answer(0.0, 0.3)]], CLIENT).request_latency_s == 0


def test_records_without_the_clients_requests_are_refused() -> None:
    crowd = [answer(0.0, 0.1), answer(0.1, 0.1)]
    for answers in ([], crowd, [answer(0.0, 0.1, 127)]):
        with pytest.raises(CostFileError, match="alone in the engine with 128 to 128 tokens"):
            fit_server([answers], CLIENT)


def report(concurrency: int) -> dict[str, object]:
    workloads = [
        {"name": "one", "concurrency": concurrency},
        {"name": "many", "concurrency": 32},
    ]
    runs = [
        {
            "workload": workload,
            "label": label,
            "figures": {
                "prompt_lengths": [low, low + 2],
                "samples": {"first_token_ms": [time_ms], "end_to_end_ms": [1e3]},
            },
        }
        for workload, label, low, time_ms in (
            ("one", "A", 100, 50.0),
            ("one", "B", 7, 1.0),
            ("many", "A", 9, 2.0),
            ("one", "A", 110, 70.0),
        )
    ]
    return {"date": "today", "workloads": workloads, "runs": runs}


def test_a_report_tells_of_its_lone_client_on_the_first_server(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(report(1)))
    assert read_lone_client(path) == LoneClient((0.05, 0.07), (100, 112))


def test_what_is_no_report_of_a_lone_client_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, told in (
        (json.dumps(report(4)), "no request of one client at a time"),
        ("{}", "no report of quire bench --json"),
        ("\xff", "no report of quire bench --json"),
    ):
        path.write_text(text, "latin-1")
        with pytest.raises(CostFileError, match=told):
            read_lone_client(path)
