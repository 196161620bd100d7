"""The checkpoint of 32k context takes prompts as long as agents send, with tools."""

from pathlib import Path

import pytest
from bench.make_models import AGENT, write_checkpoint

from tests.e2e.server_process import server_process

FIND = {
    "name": "find",
    "description": "Finds a person of the plays.",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
}
CALL = {"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"name":"Lear"}'}}


@pytest.mark.long  # prompts of 2,000 tokens go to this model in every run, test_kv_transfer.py
def test_a_prompt_of_8k_tokens_with_tools_is_answered(tmp_path: Path) -> None:
    write_checkpoint(AGENT, tmp_path / AGENT, (), seed=1234)
    messages = [
        {"role": "user", "content": "Who art thou? " * 1600},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "A king", "tool_call_id": "a"},
    ]
    with server_process(str(tmp_path / AGENT)) as server:
        answer = server.client.post(
            "/v1/chat/completions",
            json={
                "messages": messages,
                "tools": [{"type": "function", "function": FIND}],
                "max_tokens": 4,
                "ignore_eos": True,
            },
        ).json()
    assert answer["usage"]["prompt_tokens"] > 8000
    assert answer["usage"]["completion_tokens"] == 4
