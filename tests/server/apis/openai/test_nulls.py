"""null means "not given", in every field that a request knows."""

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from quire.server.apis.protocol.capabilities import capabilities_of
from quire.server.apis.protocol.chat import ChatRequest
from quire.server.apis.protocol.completions import CompletionRequest
from quire.server.apis.protocol.fields import StreamOptions
from quire.server.http.endpoints import CHAT, COMPLETIONS
from tests.server.base_bodies import BASE
from tests.server.served import Served

REQUIRED = {"prompt", "messages"}
MODELS: dict[str, type[BaseModel]] = {COMPLETIONS: CompletionRequest, CHAT: ChatRequest}


def fields_of(endpoint: str) -> Iterator[str]:
    model = MODELS[endpoint]
    yield from sorted({*model.model_fields, *capabilities_of(endpoint, model)} - REQUIRED)


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
def test_null_is_not_given_in_any_field_nor_in_all(served: Served, endpoint: str) -> None:
    fixed = {**BASE[endpoint], "seed": 3}
    plain = served.client.post(endpoint, json=fixed)
    names = [name for name in fields_of(endpoint) if name not in fixed]
    assert len(names) > 40
    for nulls in [*([name] for name in names), names]:
        reply = served.client.post(endpoint, json=fixed | dict.fromkeys(nulls))
        assert reply.status_code == 200, (nulls, reply.text)
        assert reply.json()["choices"] == plain.json()["choices"], nulls
        assert "x-quire-warnings" not in reply.headers, nulls
    first, *others = (request.sampling for request in served.engine.submitted)
    assert all(each == first for each in others)


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
def test_null_is_not_given_within_the_options_of_a_stream(served: Served, endpoint: str) -> None:
    fixed = {**BASE[endpoint], "seed": 3, "stream": True}
    options = dict.fromkeys(StreamOptions.model_fields)
    for given in (None, {}, options):
        reply = served.client.post(endpoint, json=fixed | {"stream_options": given})
        assert reply.status_code == 200
        assert '"usage":{' not in reply.text
