"""The number of series stays what it is, whatever a hostile client sends."""

from dataclasses import replace

import httpx

from quire.server.config import ApiKey
from tests.server.served import MODEL, Served, eventually, plain_config, serving

NAMED = ApiKey("key-of-the-tests", "tests")


def attack(client: httpx.Client, mark: str) -> int:
    """Send what a label could be made of, all marked. Return how many requests that were."""
    own = {"authorization": f"Bearer {NAMED.key}"}
    marked = {
        "x-request-id": mark,
        "user-agent": mark,
        "x-tenant": mark,
        "origin": f"http://{mark}",
    }
    body = {"model": mark, "prompt": "x", "max_tokens": 1, "user": mark}
    replies = [
        client.post("/v1/completions", json=body, headers=own | marked),
        client.post("/v1/completions", json=body | {"model": MODEL}, headers=own),
        client.post("/v1/completions", json=body | {"model": MODEL, mark: 1}, headers=own),
        client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {mark}"}),
        client.post(f"/v1/{mark}", json=body, headers=own),
        client.get(f"/v1/models/{mark}", headers=own),
        client.get(f"/v1/requests/{mark}?{mark}={mark}", headers=own),
        client.request("PROPFIND", "/v1/models", headers=own),
        client.request("GET", "/v1/models", headers=own | {"host": f"{mark}.example"}),
    ]
    assert client.request(mark.upper(), "/v1/models").status_code == 400  # is not counted
    assert {reply.status_code // 100 for reply in replies} == {2, 4}
    return len(replies)


def series(served: Served) -> set[str]:
    """The names of all series, with their labels."""
    lines = served.client.get("/metrics").text.splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


def test_made_up_names_make_no_series() -> None:
    config = replace(plain_config(), api_keys=(NAMED, ApiKey("without-a-name")))
    with serving(config) as served, httpx.Client(base_url=served.url, timeout=30) as client:
        num_sent = attack(client, "first")
        assert eventually(lambda: served.metric("http_requests_total{") == num_sent)
        before = series(served)
        for number in range(20):
            num_sent += attack(client, f"made-up-{number}")
        assert eventually(lambda: served.metric("http_requests_total{") == num_sent)
        after = series(served)
    assert after == before
    assert not any("made-up" in line or "first" in line.partition("{")[2] for line in after)
