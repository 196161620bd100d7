"""Log probabilities of prompts, of tokens by their ids, and with ids for texts."""

from dataclasses import replace

import pytest

from quire.server.http.endpoints import CHAT, COMPLETIONS
from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_errors import error_of
from tests.server.base_bodies import BASE
from tests.server.scripted_engine import FACTS, logprobs_of
from tests.server.served import Served, plain_config, serving

ENDPOINTS = [COMPLETIONS, CHAT]
ONE = {COMPLETIONS: {"logprobs": 1}, CHAT: {"logprobs": True, "top_logprobs": 1}}


@pytest.mark.parametrize("num_top", [0, 2])
def test_prompts_of_a_completion_are_scored_in_the_form_of_vllm(
    served: Served, tokenizer: TextTokenizer, num_top: int
) -> None:
    prompts = [list(tokenizer.encode(text, add_special_tokens=True)) for text in ("my lord", "x")]
    body = served.complete(prompt=prompts, max_tokens=1, prompt_logprobs=num_top).json()
    for prompt, choice in zip(prompts, body["choices"], strict=True):
        first, *rest = choice["prompt_logprobs"]
        assert first is None and len(rest) == len(prompt) - 1
        for token_id, by_token in zip(prompt[1:], rest, strict=True):
            scores = logprobs_of(token_id, num_top)
            assert list(map(int, by_token)) == [token_id, *(each for each, _ in scores.top)]
            own = by_token[str(token_id)]
            assert (own["logprob"], own["rank"]) == (scores.logprob, scores.rank)
            assert own["decoded_token"] == tokenizer.decode((token_id,), skip_special_tokens=False)
            ranks = [each["rank"] for each in by_token.values()][1:]
            assert ranks == list(range(1, num_top + 1))
    assert "prompt_logprobs" not in served.complete(prompt="x").json()["choices"][0]


def test_the_prompt_of_a_chat_is_scored_beside_the_choices(served: Served) -> None:
    message = {"role": "user", "content": "x"}
    body = served.chat(messages=[message], max_tokens=1, n=2, prompt_logprobs=1).json()
    (request, _) = served.engine.submitted
    first, *rest = body["prompt_logprobs"]
    assert first is None
    assert [int(next(iter(each))) for each in rest] == list(request.prompt_token_ids[1:])
    assert all(choice["logprobs"] is None for choice in body["choices"])


@pytest.mark.parametrize(("own", "of_prompt"), [(None, 1), (0, 2), (2, 1)])
def test_an_echo_beside_a_scored_prompt_has_its_own_number(
    served: Served, own: int | None, of_prompt: int
) -> None:
    body = served.complete(
        prompt=[5, 6, 7], max_tokens=1, echo=True, logprobs=own, prompt_logprobs=of_prompt
    ).json()
    (choice,) = body["choices"]
    assert [len(each) for each in choice["prompt_logprobs"][1:]] == [1 + of_prompt] * 2
    if own is None:
        assert choice["logprobs"] is None
    else:
        assert [len(each) for each in choice["logprobs"]["top_logprobs"][1:]] == [own + 1] * 3


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_named_tokens_are_scored_beside_the_likeliest(
    served: Served, tokenizer: TextTokenizer, endpoint: str
) -> None:
    fields = {**BASE[endpoint], **ONE[endpoint], "logprob_token_ids": [9, 300]}
    named = {"return_tokens_as_token_ids": True}
    (choice,) = served.client.post(endpoint, json={**fields, **named}).json()["choices"]
    (request,) = served.engine.submitted
    assert request.sampling.logprob_token_ids == (9, 300)
    logprobs = choice["logprobs"]
    if endpoint == COMPLETIONS:
        tops = set(logprobs["top_logprobs"][0])
        assert logprobs["tokens"][0] in tops
        assert all(token.startswith("token_id:") for token in tops)
    else:
        (token,) = logprobs["content"]
        tops = {each["token"] for each in token["top_logprobs"]}
        assert token["token"].startswith("token_id:")
        assert token["bytes"] == list(tokenizer.token_bytes.of(int(token["token"][9:])))
    assert tops >= {"token_id:9", "token_id:300"}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"logprob_token_ids": [0] * 129}, "logprob_token_ids"),
        ({"logprob_token_ids": [FACTS.vocab_size]}, "logprob_token_ids[0]"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    served: Served, endpoint: str, fields: dict[str, object], param: str
) -> None:
    reply = served.client.post(endpoint, json={**BASE[endpoint], **fields})
    assert reply.status_code == 400
    assert error_of(reply)["param"] == param
    assert served.engine.submitted == []


def test_a_server_can_give_fewer_log_probabilities() -> None:
    with serving(replace(plain_config(), max_logprobs=1)) as served:
        for endpoint, field in (
            (COMPLETIONS, "logprobs"),
            (COMPLETIONS, "prompt_logprobs"),
            (CHAT, "top_logprobs"),
            (CHAT, "prompt_logprobs"),
        ):
            for number, status in ((1, 200), (2, 400)):
                fields = {**BASE[endpoint], **ONE[endpoint], field: number}
                reply = served.client.post(endpoint, json=fields)
                assert reply.status_code == status, reply.text
            assert error_of(reply)["param"] == field
