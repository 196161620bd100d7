"""A prompt is rendered as the request would run with it, and nothing runs."""

import pytest

from quire.server.text.tokenizer import TextTokenizer
from tests.server.openai.test_tools import CALLED, HELLO, RESULT, TOOL
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


def test_what_would_be_refused_is_refused(served: Served) -> None:
    reply = served.client.post(f"{CHAT}/render", json={"messages": HELLO, "top_k": -5})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "top_k")
