"""`cache_control`: for how long a prompt is kept, which marks may follow which, what is told."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import cases
from tests.server.apis.anthropic.test_agent_bodies import last_usage
from tests.server.apis.anthropic.test_messages import (
    ASKED,
    COUNT,
    MESSAGES,
    RESULT,
    TOOL,
    USE,
    text,
    turn,
)
from tests.server.scripted_engine import BLOCK_SIZE
from tests.server.served import Served

SECONDS = {"5m": 300.0, "1h": 3600.0}
TTLS = st.lists(st.sampled_from([None, "", "5m", "1h"]), min_size=6, max_size=6)
"""For each place no mark, one without a time, which is five minutes, or one with a time."""


def marked(ttl: str | None, **fields: object) -> dict[str, object]:
    if ttl is None:
        return fields
    return fields | {"cache_control": {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}}


def body_with(ttls: list[str | None], said: str) -> dict[str, object]:
    """A body whose marks are in the order in which Anthropic reads them."""
    tools = [marked(ttls[0], **TOOL)]
    blocks = [marked(ttl, **text(said)) for ttl in ttls[1:5]]
    turns = [turn("user", *blocks[2:])]
    body = {"tools": tools, "system": blocks[:2], "messages": turns, "max_tokens": 1}
    return marked(ttls[5], **body)


PATHS = (
    *("tools[0]", "system[0]", "system[1]"),
    *("messages[0].content[0]", "messages[0].content[1]", ""),
)


@given(ttls=TTLS, said=st.text("ab c", min_size=1, max_size=40), stream=st.booleans())
@cases(60)
def test_the_longest_mark_comes_first_and_is_told(
    module_server: Served, ttls: list[str | None], said: str, stream: bool
) -> None:
    served = module_server
    asked = [(path, ttl or "5m") for path, ttl in zip(PATHS, ttls, strict=True) if ttl is not None]
    times = [SECONDS[ttl] for _, ttl in asked]
    reply = served.client.post(MESSAGES, json=body_with(ttls, said) | {"stream": stream})
    wrong = [path for (_, before), (path, ttl) in pairwise(asked) if SECONDS[before] < SECONDS[ttl]]
    if wrong:
        assert reply.status_code == 400
        where = f"{wrong[0]}.cache_control.ttl".removeprefix(".")
        assert reply.json()["error"]["details"]["param"] == where
        return
    assert reply.status_code == 200, reply.text
    assert "x-quire-warnings" not in reply.headers
    assert served.engine.submitted[-1].retention_s == max(times, default=None)
    usage: dict[str, Any] = dict(last_usage(reply.text, stream))
    parts = usage["cache_creation"]
    created, read = usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]
    assert sum(parts.values()) == created
    assert min(parts.values()) >= 0
    short, long = parts["ephemeral_5m_input_tokens"], parts["ephemeral_1h_input_tokens"]
    kinds = {ttl for _, ttl in asked}
    assert long == 0 or "1h" in kinds
    assert short == 0 or "5m" in kinds
    if ttls[5] == "1h":
        num_full = usage["input_tokens"] + created + read
        assert long == max(num_full // BLOCK_SIZE * BLOCK_SIZE - read, 0)


def test_a_prompt_has_a_part_for_an_hour_and_one_for_minutes(served: Served) -> None:
    system = [marked("1h", **text("roses are red " * 8))]
    turns = [turn("user", marked("5m", **text("violets are blue " * 3)))]
    asked = {"system": system, "messages": turns, "max_tokens": 1}
    usage = served.client.post(MESSAGES, json=asked).json()["usage"]
    parts = usage["cache_creation"]
    assert min(parts.values()) > 0
    assert served.engine.submitted[-1].retention_s == 3600
    alone = {"system": system, "messages": [ASKED], "max_tokens": 1}
    of_system = served.client.post(MESSAGES, json=alone).json()["usage"]["cache_creation"]
    assert of_system["ephemeral_1h_input_tokens"] == parts["ephemeral_1h_input_tokens"]


@pytest.mark.parametrize(("inner", "outer"), [("1h", "5m"), ("5m", "1h"), ("1h", "1h")])
def test_a_mark_within_a_block_comes_before_that_of_the_block(
    served: Served, inner: str, outer: str
) -> None:
    result = RESULT | {"content": [marked(inner, **text("found"))]}
    turns = [ASKED, turn("assistant", USE), turn("user", marked(outer, **result))]
    reply = served.client.post(MESSAGES, json={"messages": turns, "max_tokens": 1})
    if SECONDS[inner] >= SECONDS[outer]:
        assert reply.status_code == 200, reply.text
        assert reply.json()["usage"]["cache_creation"]["ephemeral_1h_input_tokens"] > 0
        return
    assert reply.status_code == 400
    param = reply.json()["error"]["details"]["param"]
    assert param == "messages[2].content[0].cache_control.ttl"


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize("ttl", ["1d", 300, {}])
def test_another_time_is_refused_by_its_path(served: Served, path: str, ttl: object) -> None:
    block = text("x") | {"cache_control": {"type": "ephemeral", "ttl": ttl}}
    limit = {"max_tokens": 1} if path == MESSAGES else {}
    reply = served.client.post(path, json={"messages": [turn("user", block)], **limit})
    assert reply.status_code == 400
    param = reply.json()["error"]["details"]["param"]
    assert param == "messages[0].content[0].cache_control.ttl"


@pytest.mark.parametrize("name", ["a session of mine", '{"session_id": "1"}', "", None])
def test_the_user_id_names_the_conversation(served: Served, name: str | None) -> None:
    asked = {"messages": [ASKED], "max_tokens": 1, "metadata": {"user_id": name}}
    reply = served.client.post(MESSAGES, json=asked)
    assert "x-quire-warnings" not in reply.headers
    assert served.engine.submitted[-1].session == (name or "")


@pytest.mark.parametrize("name", [7, ["x"], "x" * 513])
def test_a_user_id_that_is_no_name_is_refused(served: Served, name: object) -> None:
    asked = {"messages": [ASKED], "max_tokens": 1, "metadata": {"user_id": name}}
    reply = served.client.post(MESSAGES, json=asked)
    assert reply.status_code == 400
    assert reply.json()["error"]["details"]["param"] == "metadata.user_id"
