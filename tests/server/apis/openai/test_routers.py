"""Routers read a request into their own types and write it anew, with every default filled in."""

import pytest

from quire.server.http.endpoints import CHAT, COMPLETIONS
from tests.server.apis.openai.test_errors import error_of
from tests.server.base_bodies import BASE
from tests.server.served import MODEL, Served

SGLANG_COMPLETION: dict[str, object] = {
    "stream": False,
    "echo": False,
    "no_stop_trim": False,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "return_hidden_states": False,
}
SGLANG_CHAT: dict[str, object] = {
    "logprobs": False,
    "stream": False,
    "no_stop_trim": False,
    "ignore_eos": False,
    "continue_final_message": False,
    "skip_special_tokens": True,
    "separate_reasoning": True,
    "stream_reasoning": True,
    "return_hidden_states": False,
}
VLLM_CHAT = {**SGLANG_CHAT, "include_reasoning": True}
FILLED_IN = [
    pytest.param(COMPLETIONS, SGLANG_COMPLETION, id="completion of either router"),
    pytest.param(CHAT, SGLANG_CHAT, id="chat of sglang-router 0.3.2"),
    pytest.param(CHAT, VLLM_CHAT, id="chat of vllm-router 0.1.17"),
]


@pytest.mark.parametrize(("endpoint", "filled_in"), FILLED_IN)
def test_what_routers_fill_in_changes_nothing(
    served: Served, endpoint: str, filled_in: dict[str, object]
) -> None:
    plain = {**BASE[endpoint], "model": MODEL}
    direct = served.client.post(endpoint, json=plain)
    routed = served.client.post(endpoint, json=plain | filled_in)
    assert (direct.status_code, routed.status_code) == (200, 200)
    assert routed.json()["choices"] == direct.json()["choices"]
    assert "x-quire-warnings" not in routed.headers


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("field", "idle", "asks"),
    [
        ("no_stop_trim", [False], True),
        ("return_hidden_states", [False], True),
        ("separate_reasoning", [True], "yes"),
        ("stream_reasoning", [True], 1),
    ],
)
def test_what_asks_for_something_is_refused(
    served: Served, endpoint: str, field: str, idle: list[bool], asks: object
) -> None:
    for value in (None, *idle):
        reply = served.client.post(endpoint, json={**BASE[endpoint], field: value})
        assert reply.status_code == 200
    reply = served.client.post(endpoint, json={**BASE[endpoint], field: asks})
    assert reply.status_code == 400
    error = error_of(reply)
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
