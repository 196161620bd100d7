"""Fields of histories that clients bring from other servers: some are taken, others are left out of
the prompt and reported, or refused where the server is told to."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.openai.history_fields import FOREIGN_FIELDS
from quire.server.config import UnknownFieldPolicy
from quire.server.http.endpoints import CHAT
from quire.server.http.report_headers import IGNORED, MAX_PATHS
from tests.server.apis.openai.test_errors import error_of
from tests.server.served import Served, plain_config, serving

USER: dict[str, object] = {
    "role": "user",
    "content": [{"type": "text", "text": "Which sword"}, {"type": "text", "text": "is mine?"}],
}
CALL: dict[str, object] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "find", "arguments": '{"what": "sword"}'},
}
CHAT_BODY: dict[str, object] = {
    "messages": [
        {"role": "system", "content": "Thou art a smith."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "the long one"},
        {"role": "assistant", "content": "The long one."},
        {"role": "user", "content": "And the short one?"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "find", "description": "Find.", "parameters": {"type": "object"}},
        }
    ],
}
PLACES: Mapping[str, tuple[tuple[str | int, ...], ...]] = {
    "message": tuple(("messages", index) for index in range(6)),
    "part": (("messages", 1, "content", 0), ("messages", 1, "content", 1)),
    "tool": (("tools", 0),),
    "function": (("tools", 0, "function"),),
    "call": (("messages", 2, "tool_calls", 0),),
    "called function": (("messages", 2, "tool_calls", 0, "function"),),
}
KEPT_OUT = [
    (each.name, keys) for each in FOREIGN_FIELDS if each.use is None for keys in PLACES[each.place]
]
EVERYWHERE = [keys for places in PLACES.values() for keys in places]
VALUES = st.sampled_from([True, 0, 1.5, "said", ["said"], {"said": [1]}])
NOTHING: list[object] = [None, "", [], {}]
EMPTY = st.sampled_from(NOTHING)
UNKNOWN = st.sampled_from(["foo", "x-y", "contentment", "é", "a,b", "line\nend"])


def path_of(keys: tuple[str | int, ...], name: str) -> str:
    path = str(keys[0])
    for key in (*keys[1:], name):
        path += f"[{key}]" if isinstance(key, int) else f".{key}"
    return path


def with_fields(given: list[tuple[str, tuple[str | int, ...], object]]) -> dict[str, object]:
    """The chat with more fields, each at a place."""
    body = copy.deepcopy(CHAT_BODY)
    for name, keys, value in given:
        holder: object = body
        for key in keys:
            holder = holder[key]  # type: ignore[index]
        assert isinstance(holder, dict)
        holder[name] = value
    return body


def prompt_of(served: Served, body: Mapping[str, object]) -> tuple[object, str | None]:
    """The tokens of a chat's prompt, and what the answer says was left out."""
    reply = served.client.post(f"{CHAT}/render", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["prompts"][0]["token_ids"], reply.headers.get(IGNORED)


@given(
    taken=st.lists(st.tuples(st.sampled_from(KEPT_OUT), VALUES), max_size=5),
    empty=st.lists(st.tuples(UNKNOWN, st.sampled_from(EVERYWHERE), EMPTY), max_size=3),
    unknown=st.lists(
        st.tuples(UNKNOWN, st.sampled_from(EVERYWHERE), VALUES),
        max_size=5,
        unique_by=lambda each: each[:2],
    ),
)
def test_what_is_left_out_changes_no_prompt_and_is_said_where_it_is_unknown(
    reporting: Served,
    taken: list[tuple[tuple[str, tuple[str | int, ...]], object]],
    empty: list[tuple[str, tuple[str | int, ...], object]],
    unknown: list[tuple[str, tuple[str | int, ...], object]],
) -> None:
    told = {(name, keys) for name, keys, _ in unknown}
    fields = [(name, keys, value) for (name, keys), value in taken]
    fields += [each for each in empty if each[:2] not in told] + unknown
    plain, _ = prompt_of(reporting, CHAT_BODY)
    tokens, ignored = prompt_of(reporting, with_fields(fields))
    assert tokens == plain
    paths = {path_of(keys, name) for name, keys in told}
    shown = {"".join(c if " " <= c <= "~" and c != "," else "?" for c in path) for path in paths}
    assert (set() if ignored is None else set(ignored.split(", "))) == shown


@pytest.fixture(scope="module")
def reporting() -> Iterator[Served]:
    with serving(plain_config()) as served:
        yield served


@pytest.fixture(scope="module")
def strict() -> Iterator[Served]:
    with serving(replace(plain_config(), unknown_fields=UnknownFieldPolicy.REFUSE)) as served:
        yield served


@pytest.fixture(scope="module")
def trusting() -> Iterator[Served]:
    with serving(replace(plain_config(), trust_request_chat_template=True)) as served:
        yield served


@pytest.mark.parametrize("keys", EVERYWHERE, ids=lambda keys: path_of(keys, "foo"))
def test_unknown_fields_are_refused_where_the_server_is_told_to(
    strict: Served, keys: tuple[str | int, ...]
) -> None:
    error = error_of(strict.chat(**with_fields([("foo", keys, 1)])))
    assert (error["param"], error["code"]) == (path_of(keys, "foo"), "unknown_parameter")


def test_a_refused_field_gets_a_hint_of_its_place(strict: Served) -> None:
    error = error_of(strict.chat(messages=[{"role": "user", "contents": "x"}]))
    assert error["message"] == (
        "Unknown field 'messages[0].contents'. Did you mean 'messages[0].content'?"
    )


@pytest.mark.parametrize(("name", "keys"), KEPT_OUT, ids=lambda each: str(each))
def test_fields_of_other_servers_are_taken_even_then(
    strict: Served, name: str, keys: tuple[str | int, ...]
) -> None:
    assert prompt_of(strict, with_fields([(name, keys, {"a": 1})])) == prompt_of(strict, CHAT_BODY)


def test_what_was_left_out_is_in_the_header_the_timeline_and_a_counter(served: Served) -> None:
    body = with_fields([("foo", ("messages", 1), 1), ("bar", ("tools", 0), "x")])
    reply = served.chat(**body, max_tokens=1, tool_choice="none")
    paths = ["messages[1].foo", "tools[0].bar"]
    assert reply.headers[IGNORED] == ", ".join(paths)
    timeline = served.client.get(f"/v1/requests/{reply.json()['id']}").json()
    assert timeline["ignored"] == paths
    metrics = served.client.get("/metrics").text
    for field in ("messages", "tools"):
        counted = f'quire:requests_with_ignored_total{{engine="0",field="{field}"'
        assert counted in metrics


def test_a_stream_says_what_was_left_out(served: Served) -> None:
    reply = served.chat(**with_fields([("foo", ("messages", 0), 1)]), max_tokens=1, stream=True)
    assert reply.headers[IGNORED] == "messages[0].foo"


def test_a_header_has_a_bound(served: Served) -> None:
    many = {f"field{number}": 1 for number in range(20_000)}
    message = {"role": "user", "content": "Hello"}
    reply = served.chat(messages=[message | many], max_tokens=1)
    told = reply.headers[IGNORED].split(", ")
    assert len(told) == MAX_PATHS + 1
    assert told[-1].endswith(" more")


def test_top_level_fields_that_are_unknown_are_still_refused(served: Served) -> None:
    error = error_of(served.chat(messages=[USER], maxtokens=1))
    assert error["param"] == "maxtokens"
    assert "Did you mean 'max_tokens'" in str(error["message"])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("reasoning_details", [{"type": "reasoning.text", "text": "The edge is", "format": "x"}]),
        ("reasoning_details", [{"type": "reasoning.summary", "summary": "The edge is"}]),
        ("thinking_blocks", [{"type": "thinking", "thinking": "The edge is", "signature": "s"}]),
    ],
)
def test_reasoning_in_parts_is_that_of_the_message(
    trusting: Served, name: str, parts: list[object]
) -> None:
    template = "{% for m in messages %}<{{ m.reasoning_content }}|{{ m.content }}>{% endfor %}"
    for more, expected in (({}, "The edge is"), ({"reasoning": "Mine"}, "Mine")):
        said = {"role": "assistant", "content": "Sharp.", name: parts, **more}
        body = {"messages": [said], "chat_template": template}
        prompt = trusting.client.post(f"{CHAT}/render", json=body).json()["prompts"][0]
        assert prompt["text"] == f"<{expected}|Sharp.>"


def test_encrypted_reasoning_is_kept_out(served: Served) -> None:
    sealed = [{"type": "reasoning.encrypted", "data": "..."}]
    said = {"role": "assistant", "content": "Sharp."}
    messages = [USER, said | {"reasoning_details": sealed}, USER]
    assert prompt_of(served, {"messages": messages}) == prompt_of(
        served, {"messages": [USER, said, USER]}
    )


@pytest.mark.parametrize("content", [None, []], ids=repr)
def test_a_refusal_is_what_the_assistant_said(served: Served, content: object) -> None:
    refused = {"role": "assistant", "content": content, "refusal": "I will not."}
    part = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}
    said = {"role": "assistant", "content": "I will not."}
    expected = prompt_of(served, {"messages": [USER, said, USER]})
    for message in (refused, part):
        assert prompt_of(served, {"messages": [USER, message, USER]}) == expected


def test_an_answer_goes_on_with_a_message_that_is_a_prefix(served: Served) -> None:
    begun = {"role": "assistant", "content": "The sword is"}
    going_on = {"messages": [USER, begun], "continue_final_message": True}
    marked = {"messages": [USER, begun | {"prefix": True}]}
    assert prompt_of(served, marked) == prompt_of(served, going_on)
    assert prompt_of(served, marked | {"continue_final_message": False}) != prompt_of(
        served, going_on
    )


def test_only_the_assistants_message_can_be_a_prefix(served: Served) -> None:
    error = error_of(served.chat(messages=[{"role": "user", "content": "x", "prefix": True}]))
    assert error["param"] == "messages[0].prefix"


@pytest.mark.parametrize("kind", [{}, [], None, 1, "image_url"], ids=repr)
def test_a_part_of_another_type_is_refused_by_its_type(served: Served, kind: object) -> None:
    message = {"role": "user", "content": [{"type": kind, "refusal": "", "foo": 1}]}
    assert error_of(served.chat(messages=[message]))["param"] == "messages[0].content[0].type"
