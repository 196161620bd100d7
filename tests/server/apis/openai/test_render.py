"""A prompt is rendered as the request would run with it, and nothing runs."""

import pytest

from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_tools import CALLED, HELLO, RESULT, TOOL
from tests.server.served import Served

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CALL = {"role": "assistant", "content": None, "tool_calls": [CALLED]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": ["Once upon", "a time"], "n": 2}),
        (COMPLETIONS, {"prompt": [5, 6, 7], "echo": True}),
        (CHAT, {"messages": HELLO}),
        (CHAT, {"messages": [*HELLO, CALL, RESULT], "tools": [TOOL], "tool_choice": "required"}),
        (CHAT, {"messages": HELLO, "response_format": {"type": "json_object"}}),
    ],
)
def test_a_prompt_is_the_one_that_runs(
    served: Served, tokenizer: TextTokenizer, path: str, body: dict[str, object]
) -> None:
    num_before = len(served.engine.submitted)
    rendered = served.client.post(f"{path}/render", json=body).json()
    assert len(served.engine.submitted) == num_before
    served.client.post(path, json=body | {"max_tokens": 1}).raise_for_status()
    ran = [each.prompt_token_ids for each in served.engine.submitted[num_before:]]
    shown = [tuple(prompt["token_ids"]) for prompt in rendered["prompts"]]
    assert shown == list(dict.fromkeys(ran))
    for prompt in rendered["prompts"]:
        assert prompt["count"] == len(prompt["token_ids"])
        assert prompt["text"] == tokenizer.decode(prompt["token_ids"], skip_special_tokens=False)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {}),
        (COMPLETIONS, {"max_tokens": 3, "seed": 7, "stop": "x", "n": 2, "top_k": -1}),
        (COMPLETIONS, {"max_tokens": 0, "echo": True}),
        (CHAT, {"temperature": 0, "min_p": 0.1, "ignore_eos": True, "min_tokens": 2}),
        (CHAT, {"max_completion_tokens": 4, "stop_token_ids": [9], "presence_penalty": 1}),
    ],
)
def test_limits_and_sampling_are_those_that_run(
    served: Served, path: str, fields: dict[str, object]
) -> None:
    asked = {**({"prompt": "x"} if path == COMPLETIONS else {"messages": HELLO}), **fields}
    shown = served.client.post(f"{path}/render", json=asked).json()
    served.client.post(path, json=asked).raise_for_status()
    ran = served.engine.submitted[0]
    told = shown["sampling"]
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        assert told[name] == getattr(ran.sampling, name)
    for name in ("frequency_penalty", "presence_penalty"):
        assert told[name] == getattr(ran.sampling, name)
    assert told["seed"] in (None, ran.sampling.seed)
    assert told["n"] == len(served.engine.submitted)
    assert told["stop"] == ([fields["stop"]] if "stop" in fields else [])
    for name in ("stop_token_ids", "eos_token_ids"):
        assert tuple(told[name]) == getattr(ran.stopping, name)
    assert told["min_tokens"] == ran.stopping.min_tokens
    num_tokens = 0 if fields.get("max_tokens") == 0 else ran.stopping.max_tokens
    assert [prompt["max_tokens"] for prompt in shown["prompts"]] == [num_tokens]


def test_what_would_be_refused_is_refused(served: Served) -> None:
    reply = served.client.post(f"{CHAT}/render", json={"messages": HELLO, "top_k": -5})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "top_k")
    reply = served.client.post(f"{CHAT}/render", json={"messages": HELLO, "max_tokens": 1000})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "max_tokens")
