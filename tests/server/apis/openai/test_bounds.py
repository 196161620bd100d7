"""What has too many parts is refused before anything is made of them, and the first wrong value or
unknown field ends the check."""

import pytest

from quire.server.apis.protocol.completions import CompletionRequest
from quire.server.apis.protocol.parse import parse_request
from quire.server.errors import RequestError
from quire.server.generation.engine_requests import MAX_LOGPROBS_KEPT
from quire.server.http.endpoints import COMPLETIONS
from tests.server.served import Served

MANY = 20_000
HELLO = {"role": "user", "content": "Hello there"}
UNKNOWN = {f"field{n}": 1 for n in range(MANY)}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"stop": [1] * MANY}, "stop", "has 20000 items, at most 16 are allowed"),
        ({"stop_token_ids": ["x"] * MANY}, "stop_token_ids", "at most 256 are allowed"),
        ({"logit_bias": dict.fromkeys(UNKNOWN, "x")}, "logit_bias", "at most 1024 are allowed"),
        ({"prompt": [1.5] * MANY}, "prompt", "holds 20000 prompts, at most 1024 are allowed"),
        ({"temperature": "hot", **UNKNOWN}, "field0", "Unknown field 'field0'"),
        (
            {"stream": True, "stream_options": UNKNOWN},
            "stream_options.field0",
            "Unknown field 'stream_options.field0'",
        ),
    ],
    ids=lambda each: str(each)[:30],
)
def test_many_parts_of_a_completion(
    served: Served, fields: dict[str, object], param: str, message: str
) -> None:
    error = served.complete(**{"prompt": "x", **fields}).json()["error"]
    assert error["param"] == param
    assert message in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": [1] * MANY}, "messages", "has 20000 items, at most 4096 are allowed"),
        ({"messages": [HELLO, 1, 2]}, "messages[1]", "Invalid 'messages[1]'"),
        (
            {"messages": [{"role": "user", "content": [1] * MANY}]},
            "messages[0].content",
            "has 20000 parts, at most 4096 are allowed",
        ),
        (
            {"messages": [HELLO], "chat_template_kwargs": UNKNOWN},
            "chat_template_kwargs",
            "at most 64 are allowed",
        ),
    ],
    ids=lambda each: str(each)[:30],
)
def test_many_parts_of_a_conversation(
    served: Served, fields: dict[str, object], param: str, message: str
) -> None:
    error = served.chat(**fields).json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_many_wrong_tokens(served: Served) -> None:
    error = served.client.post("/detokenize", json={"tokens": ["x"] * MANY}).json()["error"]
    assert error["param"] == "tokens[0]"
    error = served.client.post("/detokenize", json={"tokens": [1] * (2**20 + 1)}).json()["error"]
    assert error["param"] == "tokens"
    assert "at most 1048576 are allowed" in error["message"]


def test_the_last_value_of_a_list_is_still_looked_at() -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(b'{"prompt": "x", "stop": ["a", "b", 3]}', CompletionRequest, COMPLETIONS)
    assert caught.value.param == "stop[2]"


def test_a_long_name_of_a_model_is_not_said_back_whole(served: Served) -> None:
    error = served.complete(prompt="x", model="m" * 100_000).json()["error"]
    assert error["code"] == "model_not_found"
    assert len(error["message"]) < 1000


def test_prompts_with_too_many_log_probabilities_are_refused(served: Served) -> None:
    most = MAX_LOGPROBS_KEPT // (200 * 21)
    for weight, fields in ((1, {"echo": True, "logprobs": 20}), (3, {"prompt_logprobs": 20})):
        too_many: dict[str, object] = {"max_tokens": 0, "echo": True, **fields}
        prompts = [[5] * 200] * (most // weight + 1)
        error = served.complete(prompt=prompts, **too_many).json()["error"]
        assert error["param"] in fields
        assert f"{len(prompts) * 200 * 21 * weight} log probabilities" in error["message"]


def test_outputs_with_too_many_log_probabilities_are_refused(served: Served) -> None:
    asked = {"prompt": ["x"] * 1024, "max_tokens": 200, "logprobs": 20}
    error = served.complete(**asked).json()["error"]
    assert error["param"] == "logprobs"
    assert f"{1024 * 200 * 21} log probabilities" in error["message"]
    assert f"{MAX_LOGPROBS_KEPT} of one answer" in error["message"]
    assert "stream" in error["message"]
    assert served.engine.submitted == []
    with served.client.stream("POST", "/v1/completions", json=asked | {"stream": True}) as reply:
        assert reply.status_code == 200
