"""`--log-format json`: every line of the log is an object, and a request's has its account."""

import json
import re

from tests.e2e.server_process import MODEL, eventually, server_process

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SECRET = "Wherefore art thou"


def test_every_line_is_an_object_and_requests_have_their_account() -> None:
    with server_process("--log-format", "json", "--log-level", "debug") as server:
        headers = {
            "x-request-id": "find-me",
            "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
        }
        body = {"model": MODEL, "prompt": SECRET, "max_tokens": 4, "ignore_eos": True}
        server.client.post("/v1/completions", json=body, headers=headers).raise_for_status()
        server.client.get("/v1/models", headers={"x-request-id": "no-tokens"}).raise_for_status()
        fresh = {"model": MODEL, "prompt": f"{SECRET} " * 8, "max_tokens": 4, "n": 3}
        asked = server.client.post("/v1/completions", json=fresh, headers={"x-request-id": "three"})
        refused = {**body, "temperature": 9}
        server.client.post("/v1/completions", json=refused, headers={"x-request-id": "why"})

        def found() -> list[dict[str, object]]:
            lines = [json.loads(line) for line in server.log().splitlines()]
            return [line for line in lines if "request_id" in line]

        assert eventually(lambda: len(found()) == 4, 10)
        lines = [json.loads(line) for line in server.log().splitlines()]
        by_id = sorted(found(), key=lambda line: str(line["request_id"]))
        done, listed, three, why = by_id
        assert SECRET not in server.log()
    loggers = {str(line["logger"]).split()[0] for line in lines}  # engines may have numbers
    assert {"quire.engine", "quire.access"} <= loggers
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z", line["time"]) for line in lines)
    assert (done["request_id"], done["trace_id"], done["status"]) == ("find-me", TRACE, 200)
    assert (done["model"], done["output_tokens"], done["finish"]) == (MODEL, 4, "max_tokens")
    assert float(str(done["prefill_s"])) > 0 and float(str(done["decode_s"])) > 0
    assert (listed["request_id"], "model" in listed) == ("no-tokens", False)
    num_cached = asked.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert three["cached_tokens"] == num_cached
    assert (why["error_code"], why["error_field"]) == ("invalid_value", "temperature")
    assert not {"error_code", "error_field"} & {*done, *listed, *three}
