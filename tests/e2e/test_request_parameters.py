"""Fields beyond OpenAI's own, by the `openai` client, against the model in the box: scored prompts,
tokens by id, progress of the prompt, templates of requests."""

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.server_process import MODEL, ServerProcess, server_process

BUDGET = 32
PROMPT = "The king shall have my service, but my prayers are for the queen. " * 6
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = ("--dtype", "float32", "--trust-request-chat-template", "--max-num-seqs", "8")
    with server_process(*flags, "--max-num-batched-tokens", str(BUDGET)) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_scored_prompt_is_an_echoed_one_in_another_form(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=1,
        echo=True,
        logprobs=2,
        extra_body={"prompt_logprobs": 2, "return_tokens_as_token_ids": True},
    )
    choice = done.choices[0].model_dump()
    logprobs, scores = choice["logprobs"], choice["prompt_logprobs"]
    assert len(scores) > 2 * BUDGET
    assert scores[0] is logprobs["token_logprobs"][0] is None
    for index, by_token in enumerate(scores[1:], start=1):
        own, *_ = by_token
        assert f"token_id:{own}" == logprobs["tokens"][index]
        assert by_token[own]["logprob"] == logprobs["token_logprobs"][index]
        told = {f"token_id:{each}": told["logprob"] for each, told in by_token.items()}
        assert told == logprobs["top_logprobs"][index]
        by_rank = sorted(by_token.values(), key=lambda each: each["rank"])
        values = [each["logprob"] for each in by_rank]
        assert values == sorted(values, reverse=True)


def test_a_named_token_has_the_score_that_it_is_given_elsewhere(client: openai.OpenAI) -> None:
    def top_of(count: int, named: list[int]) -> dict[str, float]:
        done = client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=1,
            temperature=0,
            logprobs=True,
            top_logprobs=count,
            extra_body={"logprob_token_ids": named, "return_tokens_as_token_ids": True},
        )
        logprobs = done.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        return {each.token: each.logprob for each in logprobs.content[0].top_logprobs}

    likeliest = top_of(20, [])
    ids = [int(token.removeprefix("token_id:")) for token in likeliest]
    assert top_of(0, ids) == pytest.approx(likeliest, abs=1e-6)


def test_a_long_prompt_is_told_step_by_step(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=1,
        stream=True,
        extra_body={"return_progress": True, "cache_salt": "unseen"},
    )
    told = [each["prompt_progress"] for each in map(_extra, stream) if "prompt_progress" in each]
    (total,) = {each["total"] for each in told}
    processed = [each["processed"] for each in told]
    assert processed == [*range(BUDGET, int(total), BUDGET), total]
    assert [each["time_ms"] for each in told] == sorted(each["time_ms"] for each in told)


def _extra(chunk: object) -> dict[str, dict[str, float]]:
    return getattr(chunk, "model_extra", None) or {}


def test_a_template_of_the_request_is_the_prompt(client: openai.OpenAI) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    done = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=4,
        temperature=0,
        extra_body={"chat_template": template},
    )
    plain = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, temperature=0)
    assert done.choices[0].message.content == plain.choices[0].text
