"""`POST /v1/embeddings`: a vector for each input, as numbers or base64, and what is refused."""

import base64
from array import array
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.config import SchedulingConfig
from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Pooling, PoolingKind
from quire.server.apis.embeddings.inputs import read_inputs
from quire.server.apis.embeddings.protocol import EmbeddingRequest
from quire.server.errors import RequestError
from quire.server.models.input_context import InputContext, InputLimits, TokenizerSource
from quire.server.text.tokenizer import TextTokenizer
from tests.profiles import cases
from tests.server.scripted_engine import FACTS, vector_of
from tests.server.served import BUNDLED, MODEL, Served, plain_config, serving, with_model

EMBEDDINGS = "/v1/embeddings"
SOURCE = TokenizerSource(BUNDLED, None)
MAX_LEN = 200
"""Of a text, by the scripted engine's facts; a context has 256 tokens."""


def embed(served: Served, **fields: object) -> httpx.Response:
    return served.client.post(EMBEDDINGS, json=fields)


def test_each_input_has_a_vector_in_its_order(served: Served) -> None:
    body = embed(served, input=["the king", "my lord", "the king"]).raise_for_status().json()
    submitted = served.engine.submitted
    assert [each.prompt_token_ids for each in submitted[:2]] != [submitted[2].prompt_token_ids] * 2
    vectors = [array("f", vector_of(each)).tolist() for each in submitted]
    assert [each["embedding"] for each in body["data"]] == vectors
    assert [each["index"] for each in body["data"]] == [0, 1, 2]
    num_tokens = sum(len(each.prompt_token_ids) for each in submitted)
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert (body["object"], body["model"]) == ("list", MODEL)


def test_an_engine_request_samples_nothing_and_pools(served: Served) -> None:
    embed(served, input="the king", dimensions=3, normalize=False).raise_for_status()
    (new,) = served.engine.submitted
    assert new.stopping.max_tokens == 0
    assert new.pooling == Pooling(PoolingKind.LAST, 3, is_normalized=False)
    assert new.fork_of is None and new.prompt_logprobs is None


@given(st.lists(st.lists(st.integers(0, 2047), min_size=1, max_size=5), min_size=1, max_size=5))
@cases(30)
def test_numbers_and_base64_say_the_same(module_server: Served, token_ids: list[list[int]]) -> None:
    asked = {"input": token_ids, "dimensions": 8}
    numbers = embed(module_server, **asked).json()["data"]
    coded = embed(module_server, **asked, encoding_format="base64").json()["data"]
    for number, code in zip(numbers, coded, strict=True):
        decoded = array("f", base64.b64decode(code["embedding"]))
        assert decoded.tolist() == number["embedding"]


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ([5, 6, 7], [(5, 6, 7)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
    ],
)
def test_token_ids_are_taken_as_they_are(
    served: Served, given: list[Any], prompts: list[tuple[int, ...]]
) -> None:
    embed(served, input=given).raise_for_status()
    assert [each.prompt_token_ids for each in served.engine.submitted] == prompts


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({}, "input", "Missing"),
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty"),
        ({"input": ["x", ""]}, "input[1]", "empty"),
        ({"input": ["x", 5]}, "input[1]", "string"),
        ({"input": [[5], []]}, "input[1]", "empty"),
        ({"input": [[5], [-1]]}, "input[1][0]", "token id"),
        ({"input": [5, FACTS.vocab_size]}, "input[1]", "2048"),
        ({"input": ["x"] * 1025}, "input", "1024"),
        ({"input": [5] * (MAX_LEN + 1)}, "input", f"{MAX_LEN} tokens and 'input' has 201"),
        ({"input": [[5], [5] * 300]}, "input[1]", "300"),
        ({"input": "x", "dimensions": 0}, "dimensions", "1"),
        ({"input": "x", "dimensions": 9}, "dimensions", "9, and this model's embeddings have 8"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format", "base64"),
        ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "1 or more"),
        ({"input": "x", "truncation_side": "left"}, "truncation_side", "truncate_prompt_tokens"),
        ({"input": "x", "priority": 1}, "priority", "scheduling-policy"),
        ({"input": "x", "stream": True}, "stream", "Unknown"),
        ({"input": "x", "messages": []}, "messages", "does not support"),
        ({"input": "x", "model": "gpt"}, "model", "does not exist"),
    ],
)
def test_what_is_wrong_is_named(
    served: Served, fields: dict[str, object], param: str, said: str
) -> None:
    reply = embed(served, **fields)
    error = reply.json()["error"]
    assert reply.status_code == (404 if param == "model" else 400)
    assert error["param"] == param
    assert said in error["message"]
    assert served.engine.submitted == []


def test_null_is_as_if_it_was_not_given(served: Served) -> None:
    nulls = dict.fromkeys(set(EmbeddingRequest.model_fields) - {"input"})
    assert embed(served, input=[5, 6], **nulls, user=None).status_code == 200


def test_a_field_without_effect_is_told(served: Served) -> None:
    reply = embed(served, input="x", user="me")
    assert reply.headers["x-quire-warnings"] == "accepted without effect: user"


@given(
    st.lists(st.integers(5, 99), min_size=1, max_size=30),
    st.sampled_from([-1, 1, 2, 7, 30]),
    st.sampled_from([None, "left", "right"]),
)
def test_a_text_is_cut_where_it_is_asked_for(
    tokenizer: TextTokenizer, token_ids: list[int], most: int, side: str | None
) -> None:
    context = InputContext(InputLimits(FACTS, 1024, (MODEL,)), tokenizer, SOURCE)
    request = EmbeddingRequest.model_validate(
        {"input": token_ids, "truncate_prompt_tokens": most, "truncation_side": side}
    )
    (prompt,) = read_inputs(request, context)
    limit = MAX_LEN if most == -1 else most
    kept = token_ids[-limit:] if side == "left" else token_ids[:limit]
    assert list(prompt.token_ids) == kept
    assert prompt.num_cut == max(len(token_ids) - limit, 0)


def test_special_tokens_around_a_text_outlive_the_cut(served: Served) -> None:
    """The tokenizer of the tests puts a beginning of sequence before a text."""
    whole, cut, bare = (
        embed(served, input="the king my lord", **fields)
        for fields in (
            {},
            {"truncate_prompt_tokens": 3},
            {"truncate_prompt_tokens": 3, "add_special_tokens": False},
        )
    )
    assert whole.status_code == cut.status_code == bare.status_code == 200
    all_ids, cut_ids, bare_ids = (each.prompt_token_ids for each in served.engine.submitted)
    assert cut_ids == all_ids[:3]
    assert bare_ids == all_ids[1:4]
    assert "cut" in cut.headers["x-quire-warnings"]


def test_a_cut_that_leaves_nothing_of_a_text_is_refused(served: Served) -> None:
    reply = embed(served, input="the king my lord", truncate_prompt_tokens=1)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "truncate_prompt_tokens")


def test_a_model_that_gives_none_says_why(tokenizer: TextTokenizer) -> None:
    assert FACTS.embeddings is not None
    for told in (None, msgspec.structs.replace(FACTS.embeddings, why_not="its pooling is max")):
        facts = msgspec.structs.replace(FACTS, embeddings=told, scores=None)
        context = InputContext(InputLimits(facts, 1024, (MODEL,)), tokenizer, SOURCE)
        with pytest.raises(RequestError, match="max" if told else "no embeddings"):
            read_inputs(EmbeddingRequest.model_validate({"input": "x"}), context)


def test_the_tenant_the_salt_and_the_deadline_reach_the_engine() -> None:
    plain = plain_config()
    scheduling = SchedulingConfig(scheduling_policy=PolicyName.PRIORITY)
    engine = replace(plain.model.engine, scheduling=scheduling)
    with serving(with_model(plain, engine=engine)) as served:
        fields = {"cache_salt": "s", "priority": -3, "deadline_ms": 60_000}
        embed(served, input="x", **fields).raise_for_status()
        (new,) = served.engine.submitted
        assert (new.priority, new.sharing.salt) == (-3, b"s")
        assert new.time_limit_s is not None and 59 < new.time_limit_s <= 60


def test_a_late_or_refused_request_is_told_as_a_text_is(served: Served) -> None:
    assert embed(served, input=["x", "y"], deadline_ms=0.0001).status_code == 504
    assert served.engine.submitted == []
    served.engine.refuses = Reason.QUEUE_FULL
    assert embed(served, input="x").status_code == 503


def test_prompts_are_counted(served: Served) -> None:
    starts = ("quire:pooled_prompts_total", "quire:request_success_total{", "quire:e2e_request_lat")
    before = [served.metric(start) for start in starts[:2]]
    embed(served, input=["x", "y"]).raise_for_status()
    assert [served.metric(start) for start in starts[:2]] == [before[0] + 2, before[1] + 2]


def test_a_timeline_says_how_it_ended(served: Served) -> None:
    answer_id = embed(served, input="x").json()["id"]
    timeline = served.client.get(f"/v1/requests/{answer_id}").json()
    assert "prompt_computed" in str(timeline)


@pytest.mark.parametrize("encoding_format", [None, "float", "base64"])
def test_the_openai_client_reads_it(served: Served, encoding_format: Any) -> None:
    base = str(served.client.base_url).rstrip("/")
    given = {} if encoding_format is None else {"encoding_format": encoding_format}
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        reply = client.embeddings.create(model=MODEL, input=["the king", "my lord"], **given)
    vectors = [array("f", vector_of(each)) for each in served.engine.submitted]
    if encoding_format == "base64":
        coded = [base64.b64decode(str(each.embedding)) for each in reply.data]
        assert coded == [vector.tobytes() for vector in vectors]
    else:
        assert [each.embedding for each in reply.data] == [each.tolist() for each in vectors]
