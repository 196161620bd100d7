"""`quire serve --replicas 2` as its clients see it."""

from collections.abc import Iterator

import pytest

from tests.e2e.many_streams import NUM_STREAMS, together_and_alone
from tests.e2e.server_process import ServerProcess, eventually, server_process

pytest.importorskip("ray", reason="the extra `ray` is not installed: `make ray-check`")


FLAGS = (
    *("--replicas", "2", "--replica-routing", "load"),
    *("--dtype", "float32", "--max-num-seqs", str(NUM_STREAMS)),
)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process(*FLAGS) as running:
        yield running


def test_streams_together_equal_their_solo_runs(server: ServerProcess) -> None:
    together, alone = together_and_alone(server)
    assert together == alone
    assert server.metric("quire:num_requests_running") == 0


def test_a_closed_stream_ends_in_its_replica(server: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body) as reply:
        next(reply.iter_lines())
        request_id = reply.headers["x-request-id"]

    def has_ended() -> bool:
        timeline = server.client.get(f"/v1/requests/{request_id}").json()
        return bool(timeline["choices"][0]["finish"] == "aborted")

    assert eventually(has_ended, 10)
    assert eventually(lambda: server.metric("quire:num_requests_running") == 0, 10)


def test_metrics_and_timelines_name_the_replica(server: ServerProcess) -> None:
    replicas, before = set(), server.metric("quire:generation_tokens_total")
    for index in range(12):
        body = {"prompt": f"{index} said the king", "max_tokens": 8, "n": 2}
        reply = server.client.post("/v1/completions", json=body)
        assert reply.status_code == 200
        timeline = server.client.get(f"/v1/requests/{reply.json()['id']}").json()
        routed = [
            {event["other"] for event in choice["events"] if event["event"] == "routed"}
            for choice in timeline["choices"]
        ]
        assert routed[0] == routed[1]  # a fork stays with its parent
        replicas |= routed[0]
    assert len(replicas) == 2
    for replica in replicas:
        assert server.metric(f'quire:generation_tokens_total{{engine="{replica}"') > 0
    assert server.metric("quire:generation_tokens_total") - before == 12 * 2 * 8


def test_an_error_of_an_engine_is_that_of_a_single_server(server: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 100_000}
    reply = server.client.post("/v1/completions", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"


def test_the_drain_ends_the_replicas() -> None:
    with server_process(*FLAGS) as own:
        assert own.stop() == 0
