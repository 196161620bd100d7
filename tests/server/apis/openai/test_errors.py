"""Whatever is wrong with a request: a 4xx, OpenAI's error object, the field at fault."""

import codecs
import gzip
import json
from dataclasses import replace

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.engine.config import SchedulingConfig
from quire.server.apis.protocol.capabilities import (
    CAPABILITIES,
    Capability,
    Support,
    capabilities_of,
    capability_table,
)
from quire.server.apis.protocol.chat import ChatRequest
from quire.server.apis.protocol.completions import CompletionRequest
from quire.server.apis.protocol.parse import parse_request
from quire.server.app.openapi.bodies import BODIES
from quire.server.http.endpoints import CHAT, COMPLETIONS
from tests.profiles import cases
from tests.server.base_bodies import BASE
from tests.server.scripted_engine import FACTS
from tests.server.served import Served, plain_config, serving, with_model


def error_of(reply: httpx.Response) -> dict[str, object]:
    """The error of an answer; one in Anthropic's shape as OpenAI's has it."""
    error: dict[str, object] = reply.json()["error"]
    details = error.pop("details", None)
    if isinstance(details, dict):
        error |= {"param": details["param"], "code": details["error_code"]}
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str)
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("n", 0),
        ("n", 129),
        ("max_tokens", -1),
        ("max_tokens", 10**30),
        ("seed", 2**63),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {str(FACTS.vocab_size): 1}),
        ("logit_bias", {"²": 1}),
        ("logit_bias", {"70": 1, "070": 1}),
        ("stop", ""),
        ("stop", ["a"] * 17),
        ("stop", [1]),
        ("stop_token_ids", [FACTS.vocab_size]),
        ("stop_token_ids", [-1]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", [5, FACTS.vocab_size]),
        ("allowed_token_ids", [1] * 1025),
        ("bad_words", "x"),
        ("bad_words", [""]),
        ("bad_words", ["a", " \n"]),
        ("bad_words", ["a"] * 65),
        ("bad_words", ["a" * 257]),
        ("bad_words", [chr(number) * 100 for number in range(0x4E00, 0x4E08)]),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("truncate_prompt_tokens", 1.5),
        ("truncation_side", "left"),
        ("truncation_side", "middle"),
        ("min_tokens", 2),
        ("stream_options", {"include_usage": True}),
        ("cache_salt", ""),
        ("stream", "yes"),
        ("priority", 1.5),
        ("priority", 2**63),
        ("deadline_ms", 0),
        ("target_itl_ms", 0),
        ("target_ttft_ms", -5),
        ("deadline_ms", "1"),
    ],
)
@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
def test_value_out_of_range_names_the_field(
    served: Served, endpoint: str, field: str, value: object
) -> None:
    reply = served.client.post(endpoint, json={**BASE[endpoint], field: value})
    assert reply.status_code == 400
    assert str(error_of(reply)["param"]).startswith(field)
    assert served.engine.submitted == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [[1], [1, 2048]]}, "prompt[1][1]"),
        ({"prompt": [5, 2048]}, "prompt[1]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"prompt": "x", "best_of": 2, "n": 3}, "best_of"),
        ({"prompt": "x", "best_of": 129}, "best_of"),
        ({"prompt": "x", "best_of": 2, "stream": True}, "best_of"),
        ({"prompt": ["x"] * 600, "best_of": 2}, "best_of"),
        ({"prompt": ["x"] * 1000, "n": 2}, "n"),
    ],
)
def test_completion_fields(served: Served, fields: dict[str, object], param: str) -> None:
    reply = served.complete(**fields)
    assert reply.status_code == 400
    assert error_of(reply)["param"] == param


def test_a_chat_wants_an_output(served: Served) -> None:
    reply = served.client.post(CHAT, json={**BASE[CHAT], "max_tokens": 0})
    assert error_of(reply)["param"] == "max_tokens"


def test_top_logprobs_need_logprobs_unless_none_are_asked_for(served: Served) -> None:
    for off in ({}, {"logprobs": None}, {"logprobs": False}):
        reply = served.client.post(CHAT, json={**BASE[CHAT], **off, "top_logprobs": 2})
        assert error_of(reply)["param"] == "top_logprobs"
        reply = served.client.post(CHAT, json={**BASE[CHAT], **off, "top_logprobs": 0})
        assert reply.json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
def test_unknown_field_is_refused_with_a_hint(served: Served, endpoint: str) -> None:
    reply = served.client.post(endpoint, json={**BASE[endpoint], "temprature": 1})
    error = error_of(reply)
    assert reply.status_code == 400
    assert error["code"] == "unknown_parameter"
    assert "Did you mean 'temperature'?" in str(error["message"])


@pytest.mark.parametrize(
    ("fields", "param", "meant"),
    [
        (
            {"stream_options": {"include_usag": True}},
            "stream_options.include_usag",
            "include_usage",
        ),
        ({"stream_options": {"messages": True}}, "stream_options.messages", None),
    ],
)
def test_hint_for_a_nested_field_is_of_its_place(
    served: Served, fields: dict[str, object], param: str, meant: str | None
) -> None:
    error = error_of(served.client.post(CHAT, json={**BASE[CHAT], "stream": True, **fields}))
    assert (error["param"], error["code"]) == (param, "unknown_parameter")
    place = param.rpartition(".")[0]
    hint = f" Did you mean '{place}.{meant}'?" if meant else ""
    assert error["message"] == f"Unknown field '{param}'.{hint}"


@pytest.mark.parametrize("path", [COMPLETIONS, "/detokenize"])
def test_unknown_field_is_named_before_a_missing_one(served: Served, path: str) -> None:
    error = error_of(served.client.post(path, json={"messages": []}))
    assert (error["param"], error["code"]) == ("messages", "unknown_parameter")


UNSUPPORTED = [
    (endpoint, each)
    for endpoint, model in BODIES.items()
    for each in capabilities_of(endpoint, model).values()
    if each.support is Support.UNSUPPORTED
]


@pytest.mark.parametrize(
    ("endpoint", "capability"), UNSUPPORTED, ids=lambda each: getattr(each, "field", str(each))
)
def test_unsupported_field_is_refused_unless_it_asks_for_nothing(
    served: Served, endpoint: str, capability: Capability
) -> None:
    field = capability.field
    reply = served.client.post(endpoint, json={**BASE[endpoint], field: {"some": ["thing"]}})
    assert reply.status_code == 400
    assert error_of(reply)["param"] == field
    assert error_of(reply)["code"] == "unsupported_parameter"
    for value in (None, *capability.passing):
        reply = served.client.post(endpoint, json={**BASE[endpoint], field: value})
        assert reply.status_code == 200, (field, value, reply.text)


def test_field_without_effect_is_reported(served: Served) -> None:
    fields = {"metadata": {"a": "b"}, "store": True, "safety_identifier": "s"}
    reply = served.client.post(CHAT, json={**BASE[CHAT], **fields})
    assert reply.status_code == 200
    for field in fields:
        assert field in reply.headers["x-quire-warnings"]
    assert "x-quire-warnings" not in served.client.post(CHAT, json=BASE[CHAT]).headers


def test_a_field_has_one_meaning() -> None:
    for endpoint in BODIES:
        fields = [each.field for each in CAPABILITIES if endpoint in each.endpoints]
        assert len(fields) == len(set(fields))


def test_a_field_that_the_model_defines_is_acted_on_whatever_the_table_says() -> None:
    class WithLora(CompletionRequest):
        lora: str | None = None

    body = b'{"prompt": "x", "lora": "y", "user": "me"}'
    request, no_effect = parse_request(body, WithLora, COMPLETIONS)
    assert (request.lora, no_effect) == ("y", ("user",))
    assert "lora" in capabilities_of(COMPLETIONS, CompletionRequest)
    table = list(capability_table({COMPLETIONS: WithLora}))
    assert [what for _, field, what in table if field == "lora"] == [Support.SUPPORTED]


def test_null_is_absent(served: Served) -> None:
    for endpoint, model in BODIES.items():
        nothing = {field: None for field in model.model_fields}
        reply = served.client.post(endpoint, json={**nothing, **BASE[endpoint]})
        assert reply.status_code == 200, reply.text


def test_context_is_exceeded_with_the_numbers(served: Served) -> None:
    reply = served.complete(prompt=[5] * 250, max_tokens=7)
    error = error_of(reply)
    assert reply.status_code == 400
    assert error["code"] == "context_length_exceeded"
    for number in ("256", "250", "7"):
        assert number in str(error["message"])
    reply = served.complete(prompt=[5] * 256)
    assert error_of(reply)["param"] == "prompt"
    assert served.complete(prompt=[5] * 250).json()["usage"]["completion_tokens"] == 6
    long = [{"role": "user", "content": "word " * 3000}]
    assert error_of(served.chat(messages=long))["code"] == "context_length_exceeded"
    hopeless = served.complete(prompt="x" * 1_000_000)
    assert error_of(hopeless)["code"] == "context_length_exceeded"


def test_unknown_model_is_not_found(served: Served) -> None:
    reply = served.complete(model="nope", prompt="x")
    assert reply.status_code == 404
    assert error_of(reply)["code"] == "model_not_found"
    assert served.client.get("/v1/models/nope").status_code == 404
    assert served.complete(model="other-name", prompt="x").json()["model"] == "other-name"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"prompt": "\\ud800"}',
        b'{"\\ud800": 1}',
        b'{"prompt": NaN}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000,
        b'{"a":' * 50_000,
        '{"prompt": "x"}'.encode("utf-16"),
    ],
)
@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_body_that_is_no_request(served: Served, endpoint: str, body: bytes) -> None:
    reply = served.client.post(endpoint, content=body)
    assert 400 <= reply.status_code < 500
    error_of(reply)


def test_any_content_type_is_read_as_json(served: Served) -> None:
    body = json.dumps(BASE[COMPLETIONS]).encode()
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "nonsense"):
        reply = served.client.post(
            COMPLETIONS, content=body, headers={"content-type": content_type}
        )
        assert reply.status_code == 200


def test_byte_order_mark_is_skipped(served: Served) -> None:
    body = codecs.BOM_UTF8 + json.dumps(BASE[COMPLETIONS]).encode()
    assert served.client.post(COMPLETIONS, content=body).status_code == 200


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_compressed_body_is_refused_with_its_encoding(served: Served, path: str) -> None:
    body = gzip.compress(json.dumps(BASE[COMPLETIONS]).encode())
    reply = served.client.post(path, content=body, headers={"content-encoding": "gzip"})
    assert reply.status_code == 415
    assert "'gzip'" in str(error_of(reply)["message"])
    assert reply.headers["accept-encoding"] == "identity"


def test_identity_is_no_compression(served: Served) -> None:
    for encoding in ("identity", "Identity", ""):
        reply = served.client.post(
            COMPLETIONS, json=BASE[COMPLETIONS], headers={"content-encoding": encoding}
        )
        assert reply.status_code == 200


def test_null_characters_are_text(served: Served) -> None:
    reply = served.complete(prompt="a\x00b", max_tokens=3)
    assert reply.status_code == 200


def test_paths_and_methods(served: Served) -> None:
    for method, path, status in (
        ("GET", "/nope", 404),
        ("POST", "/v1/nope", 404),
        ("GET", COMPLETIONS, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", COMPLETIONS + "/", 404),
        ("GET", "/v1/models/%ff%00", 404),
    ):
        reply = served.client.request(method, path)
        assert reply.status_code == status, path
        error_of(reply)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
FIELDS = sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields})


@settings(cases(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    endpoint=st.sampled_from([COMPLETIONS, CHAT]),
    fields=st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=10), VALUES, max_size=5),
    with_base=st.booleans(),
)
def test_any_object_is_served_or_refused(
    served: Served, endpoint: str, fields: dict[str, object], with_base: bool
) -> None:
    body = json.dumps({**(BASE[endpoint] if with_base else {}), **fields}).encode(
        errors="surrogatepass"
    )
    reply = served.client.post(endpoint, content=body)
    if reply.status_code != 200:
        assert 400 <= reply.status_code < 500, reply.text
        error_of(reply)


def test_more_outputs_than_the_engine_ever_holds_are_refused_for_good() -> None:
    config = plain_config()
    small = with_model(
        config,
        engine=replace(config.model.engine, scheduling=SchedulingConfig(max_num_queued_reqs=0)),
    )
    with serving(small) as served:
        most = FACTS.max_num_seqs
        for fields, param in (({"n": most + 1}, "n"), ({"prompt": ["x"] * (most + 1)}, "prompt")):
            reply = served.complete(**({"prompt": "x", "max_tokens": 1} | fields))
            assert reply.status_code == 400
            assert reply.json()["error"]["param"] == param
            assert f"the {most} outputs" in reply.json()["error"]["message"]
