"""`POST /v1/requests/{id}/cancel`: a request ends with what there is of its answer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from quire.server.config import ApiKey
from tests.server.served import Served, eventually, hold_after_first_token, plain_config, serving

ANN, BOB = ApiKey("key-of-ann", "ann"), ApiKey("key-of-bob", "bob")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with serving(replace(plain_config(), api_keys=(ANN, BOB))) as served:
        yield served


def as_owner(key: ApiKey, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key.key}", **headers}


def cancel(served: Served, name: str, key: ApiKey = ANN) -> httpx.Response:
    return served.client.post(f"/v1/requests/{name}/cancel", headers=as_owner(key))


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_ends_with_what_there_is(guarded: Served, stream: bool) -> None:
    name = f"mine-{stream}"
    said = {"prompt": "one two three", "n": 2, "max_tokens": 50, "stream": stream}
    hold_after_first_token(guarded)
    try:
        with ThreadPoolExecutor(1) as pool:
            headers = as_owner(ANN, **{"x-request-id": name})
            reply = pool.submit(guarded.client.post, "/v1/completions", json=said, headers=headers)
            assert eventually(lambda: cancel(guarded, name).status_code == 200)
            text = reply.result(20).text
    finally:
        guarded.do(guarded.engine.may_step.set)
    assert text.count('"finish_reason":"abort"') == 2
    timeline = guarded.client.get(f"/v1/requests/{name}", headers=as_owner(ANN)).json()
    assert [choice["finish"] for choice in timeline["choices"]] == ["aborted"] * 2
    assert cancel(guarded, name).json()["state"] == "ended"


def test_no_other_key_ends_a_request(guarded: Served) -> None:
    headers = as_owner(ANN, **{"x-request-id": "anns"})
    said = {"prompt": "x", "max_tokens": 1}
    guarded.client.post("/v1/completions", json=said, headers=headers).raise_for_status()
    reply = cancel(guarded, "anns", BOB)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "request_not_found")
    assert cancel(guarded, "anns").status_code == 200
