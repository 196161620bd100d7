"""`return_progress`: a stream says how far the prompt is computed."""

import json

import httpx
import pytest

from quire.server.http.endpoints import CHAT, COMPLETIONS
from tests.server.apis.openai.test_errors import error_of
from tests.server.base_bodies import BASE
from tests.server.served import Served

ENDPOINTS = [COMPLETIONS, CHAT]


def chunks_of(reply: httpx.Response) -> list[dict[str, object]]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_stream_tells_the_progress_of_each_prompt(served: Served, endpoint: str) -> None:
    fields = {**BASE[endpoint], "stream": True, "n": 2}
    reply = served.client.post(endpoint, json={**fields, "return_progress": True})
    told = [each for each in chunks_of(reply) if "prompt_progress" in each]
    (num_tokens,) = {len(each.prompt_token_ids) for each in served.engine.submitted}
    assert len(told) == 2
    for each in told:
        progress = each["prompt_progress"]
        assert isinstance(progress, dict)
        assert progress.pop("time_ms") > 0
        assert progress == {"total": num_tokens, "cache": 0, "processed": num_tokens}
    assert "prompt_progress" not in served.client.post(endpoint, json=fields).text


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_one_body_has_no_progress(served: Served, endpoint: str) -> None:
    reply = served.client.post(endpoint, json={**BASE[endpoint], "return_progress": True})
    assert error_of(reply)["param"] == "return_progress"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_chunks_that_are_not_padded_can_be_asked_for(served: Served, endpoint: str) -> None:
    for given, status in ((False, 200), (None, 200), (True, 400), (0, 400), (0.0, 400)):
        options = {"include_obfuscation": given}
        fields = {**BASE[endpoint], "stream": True, "stream_options": options}
        reply = served.client.post(endpoint, json=fields)
        assert reply.status_code == status
    assert error_of(reply)["param"] == "stream_options.include_obfuscation"
