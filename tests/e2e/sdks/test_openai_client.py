"""The `openai` client against the real server with the model in the box."""

import json
import re
from collections.abc import Iterator
from statistics import mean
from typing import Literal

import httpx
import openai
import pytest
from openai.types.chat import (
    ChatCompletionMessageParam,
    ChatCompletionToolChoiceOptionParam,
    ChatCompletionToolParam,
)
from pydantic import BaseModel, Field

from tests.e2e.server_process import MODEL, ServerProcess, server_process

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Who art thou?"}]
KEY = "key-of-the-tests"
WHOLE = {"seed": 5, "ignore_eos": True}  # the same output each time, of `max_tokens`
FIND: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {
                "thing": {"type": "string", "enum": ["sword", "crown"]},
                "number": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["thing", "number"],
        },
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("--dtype", "float32", "--api-key", KEY) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "quire"


def test_completion(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model=MODEL, prompt="To be, or not", max_tokens=12, temperature=0, extra_body=WHOLE
    )
    assert done.choices[0].text
    assert done.choices[0].finish_reason == "length"
    assert done.usage is not None and done.usage.completion_tokens == 12


def test_greedy_twice_is_the_same(client: openai.OpenAI) -> None:
    texts = {
        client.completions.create(model=MODEL, prompt="My lord,", max_tokens=12, temperature=0)
        .choices[0]
        .text
        for _ in range(2)
    }
    assert len(texts) == 1


def test_seed_decides(client: openai.OpenAI) -> None:
    def text(seed: int) -> str:
        return (
            client.completions.create(model=MODEL, prompt="My lord,", max_tokens=12, seed=seed)
            .choices[0]
            .text
        )

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(1, 5)}) > 1


def test_prompt_of_token_ids_and_lists(client: openai.OpenAI) -> None:
    done = client.completions.create(model=MODEL, prompt=[[40, 41], [42]], max_tokens=2)
    assert [choice.index for choice in done.choices] == [0, 1]


def test_streamed_completion_is_the_whole_one(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="My lord,", max_tokens=16, seed=3)
    stream = client.completions.create(
        model=MODEL,
        prompt="My lord,",
        max_tokens=16,
        seed=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].text
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_chat_and_its_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16, seed=5)
    assert whole.choices[0].message.role == "assistant"
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=16, seed=5, stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in stream]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content


def test_a_result_of_a_tool_is_answered(client: openai.OpenAI) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "A sword", "tool_call_id": "a"},
    ]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=messages,  # type: ignore[arg-type]
        tools=[{"type": "function", "function": {"name": "find"}}],
        max_tokens=8,
        extra_body=WHOLE,
    )
    assert answer.choices[0].message.content and answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("choice", "finish_reason"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "find"}}, "stop")],
)
def test_a_required_call_is_made_and_its_stream_is_the_whole_one(
    client: openai.OpenAI, choice: ChatCompletionToolChoiceOptionParam, finish_reason: str
) -> None:
    create = client.chat.completions.create
    for seed in (1, 2, 3):
        whole = create(
            model=MODEL,
            messages=HELLO,
            tools=[FIND],
            tool_choice=choice,
            parallel_tool_calls=False,
            seed=seed,
        ).choices[0]
        (call,) = whole.message.tool_calls or []
        assert call.type == "function" and call.function.name == "find"
        arguments = json.loads(call.function.arguments)
        assert arguments["thing"] in ("sword", "crown") and 1 <= arguments["number"] <= 9
        assert (whole.finish_reason, whole.message.content) == (finish_reason, None)
    stream = create(
        model=MODEL,
        messages=HELLO,
        tools=[FIND],
        tool_choice=choice,
        parallel_tool_calls=False,
        seed=3,
        stream=True,
    )
    choices = [each for chunk in stream for each in chunk.choices]
    parts = [part.function for each in choices for part in each.delta.tool_calls or []]
    texts = [part.arguments or "" for part in parts if part is not None]
    assert json.loads("".join(texts)) == arguments
    assert (len(texts) > 2, choices[-1].finish_reason) == (True, finish_reason)


def test_a_strict_tool_leaves_the_answer_free(client: openai.OpenAI) -> None:
    tool: ChatCompletionToolParam = {
        "type": "function",
        "function": {**FIND["function"], "strict": True},
    }
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[tool], max_tokens=8, seed=5
    )
    assert answer.choices[0].message.content and answer.choices[0].finish_reason == "length"


def test_several_choices_differ_and_the_first_is_the_single_one(client: openai.OpenAI) -> None:
    one = client.completions.create(model=MODEL, prompt="O,", max_tokens=12, seed=9)
    many = client.completions.create(model=MODEL, prompt="O,", max_tokens=12, seed=9, n=4)
    assert many.choices[0].text == one.choices[0].text
    assert len({choice.text for choice in many.choices}) > 1


def test_the_best_of_several_are_shown(client: openai.OpenAI) -> None:
    def complete(n: int) -> openai.types.Completion:
        return client.completions.create(
            model=MODEL, prompt="O,", max_tokens=8, n=n, best_of=4, logprobs=0, extra_body=WHOLE
        )

    def score(choice: openai.types.CompletionChoice) -> float:
        assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
        return mean(choice.logprobs.token_logprobs)

    best, drawn = complete(2), complete(4)
    assert best.usage is not None and best.usage.completion_tokens == 32
    assert [choice.index for choice in best.choices] == [0, 1]
    ranked = sorted(drawn.choices, key=lambda choice: -score(choice))
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]


def test_a_request_tells_its_timeline(client: openai.OpenAI) -> None:
    done = client.completions.create(model=MODEL, prompt="O,", max_tokens=6, n=2, extra_body=WHOLE)
    told = client.get(f"/requests/{done.id}", cast_to=httpx.Response).json()
    assert (told["object"], told["id"]) == ("request.timeline", done.id)
    for choice in told["choices"]:
        assert sum(choice["parts"].values()) == told["total_ms"]
        assert choice["counts"]["output_tokens"] == 6
        names = [event["event"] for event in choice["events"] if event["event"] != "routed"]
        assert names[0] == "queued" and "first_token" in names and names[-1] == choice["finish"]
    with pytest.raises(openai.NotFoundError):
        client.get("/requests/cmpl-unknown", cast_to=httpx.Response)


def test_a_deadline_is_an_error_that_is_not_tried_again(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as late:
        client.with_options(max_retries=2).completions.create(
            model=MODEL, prompt="O,", max_tokens=200, extra_body={"deadline_ms": 0.001}
        )
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")


class Person(BaseModel):
    """Somebody as the model describes them."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=130)
    is_king: bool
    titles: list[Literal["lord", "duke"]] = Field(max_length=3)


def test_an_output_is_parsed_as_a_model_of_pydantic(client: openai.OpenAI) -> None:
    done = client.chat.completions.parse(
        model=MODEL, messages=HELLO, response_format=Person, seed=3, max_tokens=200
    )
    (choice,) = done.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Person)
    with client.chat.completions.stream(
        model=MODEL, messages=HELLO, response_format=Person, seed=3, max_tokens=200
    ) as stream:
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.parsed == choice.message.parsed


@pytest.mark.parametrize(
    ("kind", "given", "shape"),
    [
        ("regex", r"[a-c]{3}/\d{2}", r"[a-c]{3}/\d{2}"),
        ("choice", ["to be", "not to be"], "(not )?to be"),
        ("grammar", 'start: "a" x\nx: /[0-9]{1,3}/ "!"', r"a\d{1,3}!"),
        ("json", {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, r"\[[a-z,\s]*\]"),
    ],
)
def test_an_output_keeps_to_its_grammar(
    client: openai.OpenAI, kind: str, given: object, shape: str
) -> None:
    bodies = ({"structured_outputs": {kind: given}}, {f"guided_{kind}": given})
    texts = [
        client.completions.create(
            model=MODEL, prompt="O,", max_tokens=80, seed=5, extra_body=body
        ).choices[0]
        for body in bodies
    ]
    assert texts[0].text == texts[1].text and texts[0].finish_reason == "stop"
    assert re.fullmatch(shape, texts[0].text)
    cut = client.completions.create(
        model=MODEL, prompt="O,", max_tokens=1, seed=5, extra_body=bodies[0]
    ).choices[0]
    assert texts[0].text.startswith(cut.text) and cut.finish_reason == "length"


def test_bad_words_never_come_and_nothing_but_allowed_ids_does(client: openai.OpenAI) -> None:
    def complete(**fields: object) -> tuple[str, list[int]]:
        done = client.completions.create(
            model=MODEL,
            prompt="The",
            max_tokens=24,
            temperature=0,
            extra_body={"return_token_ids": True, **fields},
        )
        return done.choices[0].text, done.choices[0].model_dump()["token_ids"]

    text, token_ids = complete()
    words = text.split()[1:3]
    assert len(words) == 2 and not set(words) & set(complete(bad_words=words)[0].split())
    allowed = {*token_ids[:3], 0}
    few = complete(allowed_token_ids=sorted(allowed))[1]
    assert few[:3] == token_ids[:3] and set(few) <= allowed


def test_stop_string(client: openai.OpenAI) -> None:
    free = client.completions.create(model=MODEL, prompt="The", max_tokens=24, temperature=0)
    text = free.choices[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    done = client.completions.create(
        model=MODEL, prompt="The", max_tokens=24, temperature=0, stop=[stop]
    )
    assert done.choices[0].text == text[: text.index(stop)]
    assert done.choices[0].finish_reason == "stop"


def test_completion_logprobs(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model=MODEL, prompt="The king", max_tokens=4, temperature=0, logprobs=3, echo=True
    )
    logprobs = done.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None and logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs)
    # pydantic has the first prompt token's null as it came, whatever the client's type says
    drawn = list(zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True))
    for token, logprob, top in drawn[-4:]:
        assert logprob <= 0
        assert max(top.values()) == top[token]  # greedy draws the likeliest
        assert len(top) == 3


def test_chat_logprobs(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    logprobs = done.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (top.logprob for top in entry.top_logprobs), reverse=True
        )


def test_prompt_scores_do_not_depend_on_how_the_prompt_is_cut(client: openai.OpenAI) -> None:
    """A prompt longer than a block, scored with and without an output to follow."""
    prompt = "The king shall have my service, but my prayers are for the queen. " * 3
    scores = [
        client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=num, temperature=0, logprobs=0, echo=True
        )
        .choices[0]
        .logprobs
        for num in (0, 2)
    ]
    first, second = (each.token_logprobs or [] for each in scores if each is not None)
    assert len(second) == len(first) + 2
    assert first[1:] == second[1:-2]


def test_errors_are_the_clients_own(server: ServerProcess, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nope", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model=MODEL, prompt="x", temperature=3)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=MODEL, prompt="x", max_tokens=100_000)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            tools=[FIND],
            tool_choice={"type": "function", "function": {"name": "seek"}},
        )
    assert tools.value.param == "tool_choice.function.name"
    with (
        openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_receipt_and_metrics_after_work(server: ServerProcess) -> None:
    reply = server.client.get("/v1/server_info", headers={"x-api-key": KEY})
    facts = reply.json()["facts"]
    assert facts["num_blocks"] > 0
    assert {line[0] for line in facts["receipt"]} >= {"weights", "kv"}
    assert server.metric("vllm:generation_tokens_total") > 0
    assert server.metric("vllm:prompt_tokens_total") > 0
    assert server.metric("quire:memory_bytes") > 0
