"""The acceptance's runner tells how each check ended, whatever a check does, and loses nothing."""

import time
from pathlib import Path

import pytest
from bench.gpu.check import Check
from bench.gpu.log import End, Log, Status
from bench.gpu.runner import Plan, left_out, run_checks

SAMPLES = "tests.bench.acceptance_samples"


def sample(name: str, limit_s: float = 60, takes_s: float = 10) -> Check:
    return Check(name, f"{SAMPLES}:{name}", "", limit_s, takes_s)


def plan(folder: Path, *, num_jobs: int = 4, budget_s: float = 120.0) -> Plan:
    log = Log(folder / "log.jsonl")
    return Plan("cpu", True, num_jobs, budget_s, folder, log)


def ends(checks: list[Check], plan: Plan) -> dict[str, End]:
    return {end.check: end for end in run_checks(checks, plan)}


@pytest.mark.long  # it waits for one that hangs
def test_each_end_is_told_with_what_was_found_before(tmp_path: Path) -> None:
    names = ("right", "faulty", "crashing", "killed")
    here = plan(tmp_path)
    began_s = time.monotonic()
    found = ends([*map(sample, names), sample("hanging", 12)], here)
    assert time.monotonic() - began_s < 60
    assert {name: end.status for name, end in found.items()} == {
        "right": Status.PASSED,
        "faulty": Status.FAILED,
        "crashing": Status.CRASHED,
        "killed": Status.CRASHED,
        "hanging": Status.TIMED_OUT,
    }
    assert "the device is gone" in found["crashing"].tail
    assert "still here" in found["hanging"].tail
    attempts = here.log.attempts()
    assert [each.end for each in attempts.values()] == list(found.values())
    assert [len(attempts[name].findings) for name in (*names, "hanging")] == [1, 2, 1, 1, 1]
    assert attempts["faulty"].findings[0].fault == "3 is not 2"
    table = here.log.table()
    for told in ("timed out", "before the hang", "sum 2, took_ms 0.5", "3 is not 2"):
        assert told in table


def test_what_has_no_time_left_is_said_not_to_have_run(tmp_path: Path) -> None:
    found = ends([sample("right"), sample("faulty")], plan(tmp_path, budget_s=1.0))
    assert {end.status for end in found.values()} == {Status.NOT_RUN}


def test_what_there_is_no_time_for_is_known_beforehand() -> None:
    checks = [
        Check("first", "", "", 60, 30),
        Check("second", "", "", 60, 50),
        Check("third", "", "", 60, 30),
        Check("alone", "", "", 60, 20, is_alone=True),
        Check("last", "", "", 60, 10),
    ]

    def missed(num_jobs: int, budget_s: float) -> list[str]:
        return [check.name for check in left_out(checks, num_jobs, budget_s)]

    # Two at once: the third begins at 30, the one that is alone at 60, the last at 80.
    assert missed(2, 86) == []
    assert missed(2, 84) == ["last"]
    assert missed(2, 64) == ["alone", "last"]
    assert missed(2, 4) == [check.name for check in checks]
    # One by one: at 0, 30, 80, 110 and 130.
    assert missed(1, 100) == ["alone", "last"]


@pytest.mark.parametrize("num_jobs", [pytest.param(1, marks=pytest.mark.long), 2])
def test_checks_run_one_by_one_where_they_must(tmp_path: Path, num_jobs: int) -> None:
    """The second would pass if it began before the first one's end."""
    checks = [Check("first", f"{SAMPLES}:once", "", 60, 10, is_alone=num_jobs == 2)]
    checks.append(Check("second", f"{SAMPLES}:once", "", 60, 10))
    found = ends(checks, plan(tmp_path, num_jobs=num_jobs))
    assert [end.status for end in found.values()] == [Status.PASSED, Status.FAILED]


def test_a_line_that_was_cut_is_passed_over(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.add_run({"on": "one"})
    log.add_end(End("right", Status.PASSED, 1.0))
    with log.path.open("a") as file:
        file.write('{"check": "faulty", "status": "pas')
    assert list(log.attempts()) == ["right"]


def test_attempts_elsewhere_are_not_taken_for_ones_here(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    for place, status in (("one", Status.PASSED), ("other", Status.CRASHED)):
        log.add_run({"on": place})
        log.add_end(End("right", status, 1.0))
    assert log.attempts({"on": "one"})["right"].end.status is Status.PASSED
    assert log.attempts({"on": "other"})["right"].end.status is Status.CRASHED
    assert log.attempts({"on": "a third"}) == {}


def test_a_run_may_say_more_of_itself_than_is_compared(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.add_run({"on": "one", "commit": "no commit"})
    log.add_end(End("right", Status.PASSED, 1.0))
    assert list(log.attempts({"on": "one"})) == ["right"]
