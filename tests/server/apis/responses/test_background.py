"""Responses that run without the connection that asked for them."""

from collections.abc import Iterator
from typing import Any

import pytest

from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from tests.server.apis.responses.test_stored import RESPONSES, ask, refused
from tests.server.served import Served, eventually, hold_after_first_token, plain_config, serving


def read(served: Served, name: str) -> dict[str, Any]:
    body: dict[str, Any] = served.client.get(f"{RESPONSES}/{name}").raise_for_status().json()
    return body


def ended(served: Served, name: str) -> dict[str, Any]:
    assert eventually(lambda: read(served, name)["status"] not in ("queued", "in_progress"))
    return read(served, name)


def test_it_runs_to_its_end_and_is_what_it_would_have_been(served: Served) -> None:
    plain = ask(served, max_output_tokens=None)
    begun = ask(served, max_output_tokens=None, background=True)
    assert (begun["status"], begun["background"], begun["output"]) == ("queued", True, [])
    assert begun["store"] is True
    done = ended(served, begun["id"])
    texts = [each["output"][0]["content"] for each in (plain, done)]
    assert texts[0] == texts[1]
    assert done["usage"]["output_tokens"] == plain["usage"]["output_tokens"]
    assert done["background"] is True
    after = ask(served, previous_response_id=begun["id"])
    assert after["previous_response_id"] == begun["id"]


def test_it_is_told_how_far_it_is_and_may_be_cancelled(served: Served) -> None:
    hold_after_first_token(served)
    name = ask(served, background=True)["id"]
    assert eventually(lambda: read(served, name)["status"] == "in_progress")
    reply = served.client.post(RESPONSES, json={"input": "x", "previous_response_id": name})
    assert refused(reply) == ("previous_response_id", "response_not_ended")
    cancelled = served.client.post(f"{RESPONSES}/{name}/cancel").raise_for_status().json()
    assert cancelled["status"] == "cancelled"
    assert served.engine.aborted
    again = served.client.post(f"{RESPONSES}/{name}/cancel").raise_for_status().json()
    assert again == cancelled == read(served, name)
    served.do(served.engine.may_step.set)


def test_what_was_made_before_it_was_cancelled_is_kept(served: Served) -> None:
    hold_after_first_token(served)
    name = ask(served, background=True)["id"]
    assert eventually(lambda: read(served, name)["status"] == "in_progress")
    served.engine.script = lambda _: iter([100] * 50)
    served.do(served.engine.may_step.set)
    cancelled = served.client.post(f"{RESPONSES}/{name}/cancel").json()
    assert cancelled["status"] in ("cancelled", "incomplete")
    assert cancelled["output"][0]["content"][0]["text"]


def test_one_that_is_deleted_ends(served: Served) -> None:
    hold_after_first_token(served)
    name = ask(served, background=True)["id"]
    served.client.delete(f"{RESPONSES}/{name}").raise_for_status()
    assert eventually(lambda: len(served.engine.aborted) == 1)
    assert served.client.get(f"{RESPONSES}/{name}").status_code == 404
    served.do(served.engine.may_step.set)


def test_only_one_in_the_background_is_cancelled(served: Served) -> None:
    reply = served.client.post(f"{RESPONSES}/{ask(served)['id']}/cancel")
    assert refused(reply) == (None, "not_in_background")


def test_one_that_fails_says_why(served: Served) -> None:
    served.engine.script = failing
    done = ended(served, ask(served, background=True)["id"])
    assert (done["status"], done["error"]["code"]) == ("failed", "server_error")
    assert "NaN" in done["error"]["message"]


def failing(_: NewRequest) -> Iterator[int]:
    yield 100
    yield -1


def test_one_that_the_engine_refuses_is_refused_at_once(served: Served) -> None:
    served.engine.refuses = Reason.QUEUE_FULL
    reply = served.client.post(RESPONSES, json={"input": "x", "background": True})
    assert refused(reply, 503)[1] == "server_overloaded"
    newest, again = (served.client.get("/v1/requests").json()["data"][0] for _ in range(2))
    assert newest["id"].startswith("resp-")
    assert newest == again  # its time has ended


@pytest.mark.parametrize("holds", [True, False])
def test_a_server_that_goes_down_does_not_wait_for_them(holds: bool) -> None:
    with serving(plain_config()) as served:
        if holds:
            hold_after_first_token(served)
        ask(served, background=True)
