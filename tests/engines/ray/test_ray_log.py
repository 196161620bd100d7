"""Lines that Ray prints for other processes become objects in a JSON log."""

import io
import json
import logging

import pytest

from quire.engines.ray.ray_log import JsonLines, join_logs


@pytest.mark.parametrize("colours", [("", ""), ("\x1b[36m", "\x1b[0m")])
def test_objects_are_passed_on_and_other_lines_become_objects(colours: tuple[str, str]) -> None:
    out = io.StringIO()
    lines = JsonLines(out)
    begin = f"{colours[0]}(ServeReplica:quire-1:engine pid=12, ip=10.0.0.2){colours[1]} "
    print(begin + '{"message": "packed (pid=3) 4 weights"}', file=lines)
    print(begin + "INFO 2026 -- Adding 2 replicas", file=lines)
    print("17", file=lines)
    print(" ", file=lines)
    lines.write("half a ")
    lines.write("line\nrest")
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [each["message"] for each in told] == [
        "packed (pid=3) 4 weights",
        "INFO 2026 -- Adding 2 replicas",
        "17",
        "half a line",
    ]
    assert {each.get("logger") for each in told[1:]} == {"ray"}


def test_lines_of_ray_have_the_handlers_of_the_process(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("ray.serve")
    logger.addHandler(logging.StreamHandler())
    logger.propagate = False
    join_logs()
    logger.warning("Started Serve")
    assert not logger.handlers
    assert [(each.name, each.message) for each in caplog.records] == [
        ("ray.serve", "Started Serve")
    ]
