"""The admin key: what it opens, what it closes to others, and that it is never shown."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.config import ApiKey
from quire.server.tenancy.tenants import EVERYONE, AdminKeyRequired, build_tenants
from tests.server.served import Served, plain_config, serving

ADMIN, ANN, BOB = "key-of-the-house", ApiKey("key-of-ann", "ann"), ApiKey("key-of-bob")
CLOSED = (
    ("get", "/v1/server_info"),
    ("get", "/v1/kv_events"),
    ("post", "/reset_prefix_cache"),
    ("post", "/v1/models/test-model/flight_record"),
)
KEYS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with serving(replace(plain_config(), api_keys=(ANN, BOB), admin_key=ADMIN)) as served:
        yield served


@pytest.fixture(scope="module")
def open_to_all() -> Iterator[Served]:
    with serving(replace(plain_config(), admin_key=ADMIN)) as served:
        yield served


def bearing(key: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} | headers


def ask(served: Served, method: str, path: str, key: str | None = None) -> httpx.Response:
    return served.client.request(method, path, headers={} if key is None else bearing(key))


def run(served: Served, request_id: str, key: str) -> None:
    said = {"prompt": "x", "max_tokens": 1}
    headers = bearing(key, **{"x-request-id": request_id})
    served.client.post("/v1/completions", json=said, headers=headers).raise_for_status()


def code_of(reply: httpx.Response) -> tuple[int, object]:
    return reply.status_code, reply.json()["error"]["code"]


@given(keys=st.lists(KEYS, min_size=1, max_size=4, unique=True), given_key=KEYS)
def test_only_the_admin_key_administers(keys: list[str], given_key: str) -> None:
    admin, *others = keys
    tenants = build_tenants([ApiKey(each) for each in others], b"secret", admin)
    for key in (*keys, given_key):
        tenant = tenants.authenticate([(b"authorization", b"Bearer " + key.encode())])
        if key not in keys:
            assert tenant == (None if others else EVERYONE)
        if tenant is None:
            continue
        assert tenant.is_admin == (key == admin)
        if key != admin:
            with pytest.raises(AdminKeyRequired):
                tenants.check_admin(tenant)
        else:
            tenants.check_admin(tenant)
            tenants.check_sees_all(tenant)


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_routes_of_administration_want_the_admin_key(
    guarded: Served, open_to_all: Served, method: str, path: str
) -> None:
    assert code_of(ask(guarded, method, path)) == (401, "invalid_api_key")
    assert code_of(ask(guarded, method, path, ANN.key)) == (403, "admin_key_required")
    assert code_of(ask(open_to_all, method, path)) == (403, "admin_key_required")
    assert code_of(ask(open_to_all, method, path, ANN.key)) == (403, "admin_key_required")
    for served in (guarded, open_to_all):
        reply = ask(served, method, path, ADMIN)
        if path == "/v1/kv_events":
            assert code_of(reply) == (404, "kv_events_off")
        elif path.endswith("/flight_record"):
            assert code_of(reply) == (409, "model_not_loaded")
        else:
            assert reply.status_code == 200


def test_other_routes_are_as_without_an_admin_key(guarded: Served, open_to_all: Served) -> None:
    for path in ("/v1/models", "/v1/loads", "/v1/requests"):
        assert ask(guarded, "get", path).status_code == 401
        assert ask(guarded, "get", path, ANN.key).status_code == 200
        assert ask(guarded, "get", path, ADMIN).status_code == 200
        assert ask(open_to_all, "get", path).status_code == 200


def test_an_admin_lists_shows_and_cancels_the_requests_of_all(guarded: Served) -> None:
    for name, key in (("anns", ANN.key), ("bobs", BOB.key), ("admins", ADMIN)):
        run(guarded, name, key)
    listed = ask(guarded, "get", "/v1/requests?all=true", ADMIN).json()["data"]
    tenants = {each["request_id"]: each["tenant"] for each in listed}
    assert tenants["anns"] == "ann"
    assert tenants["bobs"].startswith("key-") and "bob" not in tenants["bobs"]
    assert tenants["admins"] == "(admin)"
    own = ask(guarded, "get", "/v1/requests", ADMIN).json()["data"]
    own_ids = {each["request_id"] for each in own}
    assert "admins" in own_ids and not own_ids & {"anns", "bobs"}
    assert all("tenant" not in each for each in own)
    for name in ("anns", "bobs"):
        assert ask(guarded, "get", f"/v1/requests/{name}", ADMIN).status_code == 200
        cancelled = ask(guarded, "post", f"/v1/requests/{name}/cancel", ADMIN)
        assert cancelled.json()["state"] == "ended"
    assert code_of(ask(guarded, "get", "/v1/requests/nobodys", ADMIN)) == (404, "request_not_found")


def test_others_do_not_see_each_other(guarded: Served, open_to_all: Served) -> None:
    run(guarded, "of-the-admin", ADMIN)
    reply = ask(guarded, "get", "/v1/requests?all=true", ANN.key)
    assert code_of(reply) == (403, "admin_key_required")
    reply = ask(guarded, "get", "/v1/requests/of-the-admin", ANN.key)
    assert code_of(reply) == (404, "request_not_found")
    run(open_to_all, "open", "whatever")
    run(open_to_all, "open-admin", ADMIN)
    for key in (None, ADMIN):
        listed = ask(open_to_all, "get", "/v1/requests?all=true", key).json()["data"]
        assert [each["request_id"] for each in listed][:2] == ["open-admin", "open"]


def test_parameters_of_the_list_are_checked(guarded: Served) -> None:
    reply = ask(guarded, "get", "/v1/requests?all=yes", ADMIN)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "all")
    reply = ask(guarded, "get", "/v1/requests?every=true", ADMIN)
    assert code_of(reply) == (400, "unknown_parameter")


def test_without_an_admin_key_any_key_administers() -> None:
    with serving(replace(plain_config(), api_keys=(ANN, BOB))) as served:
        assert ask(served, "get", "/v1/server_info", ANN.key).status_code == 200
        assert ask(served, "post", "/reset_prefix_cache", BOB.key).status_code == 200
        reply = ask(served, "get", "/v1/requests?all=true", ANN.key)
        assert code_of(reply) == (403, "admin_key_required")


def test_the_admin_key_is_never_shown(guarded: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "quire"):
        for method, path in (*CLOSED, ("get", "/v1/requests?all=true"), ("get", "/metrics")):
            for key in (ADMIN, ANN.key):
                assert ADMIN not in ask(guarded, method, path, key).text
    assert ADMIN not in caplog.text
    assert ADMIN not in repr(replace(plain_config(), admin_key=ADMIN))
    assert "(admin)" in caplog.text
