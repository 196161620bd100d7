"""API keys are tenants: their salts, names and weights, and what is counted of them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.config import ApiKey
from quire.server.tenancy.tenants import EVERYONE, Tenant, build_tenants, lost_blocks_warning
from tests.server.served import MODEL, Served, plain_config, serving

ANN, BOB = ApiKey("key-of-ann", "ann", 2.5), ApiKey("key-of-bob")
KEYS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
SALTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)


def tenant_of(key: str, secret: bytes) -> Tenant:
    tenants = build_tenants([ApiKey("!"), ApiKey(key)], secret)
    tenant = tenants.authenticate([(b"x-api-key", key.encode())])
    assert tenant is not None
    return tenant


@given(keys=st.tuples(KEYS, KEYS), salts=st.tuples(SALTS, SALTS))
def test_salts_are_equal_only_for_the_same_key_and_addition(
    keys: tuple[str, str], salts: tuple[str | None, str | None]
) -> None:
    one, other = (
        tenant_of(key, b"secret").salt(salt) for key, salt in zip(keys, salts, strict=True)
    )
    assert (one == other) == (keys[0] == keys[1] and salts[0] == salts[1])
    assert one != tenant_of(keys[0], b"another secret").salt(salts[0])


@given(salt=SALTS)
def test_without_keys_the_salt_is_the_clients_own(salt: str | None) -> None:
    assert EVERYONE.salt(salt) == (salt or "").encode()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    config = replace(plain_config(), api_keys=(ANN, BOB), tenant_secret="of the tests")
    with serving(config) as served:
        yield served


def complete(served: Served, key: ApiKey, **fields: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key.key}"}
    return served.client.post("/v1/completions", json={"prompt": "x"} | fields, headers=headers)


def test_a_request_carries_its_tenant(guarded: Served) -> None:
    guarded.engine.submitted.clear()
    for key in (ANN, BOB, ANN):
        assert complete(guarded, key).status_code == 200
    assert complete(guarded, ANN, cache_salt="mine").status_code == 200
    ann, bob, again, salted = guarded.engine.submitted
    assert (ann.tenant, ann.weight, bob.weight) == ("ann", 2.5, 1.0)
    assert bob.tenant.startswith("key-") and "bob" not in bob.tenant
    assert ann.sharing == again.sharing
    assert len({ann.sharing.salt, bob.sharing.salt, salted.sharing.salt}) == 3


def test_secret_decides_over_restarts() -> None:
    salts = []
    for secret in ("one", "one", "two", None):
        config = replace(plain_config(), api_keys=(ANN,), tenant_secret=secret)
        with serving(config) as served:
            complete(served, ANN)
            salts.append(served.engine.submitted[0].sharing.salt)
    assert salts[0] == salts[1]
    assert len(set(salts)) == 3


def test_blocks_that_no_key_finds_after_a_start_are_warned_of(tmp_path: Path) -> None:
    config = plain_config()
    (model,) = config.models
    memory = replace(model.engine.memory, prefix_cache_dir=str(tmp_path), prefix_cache_bytes=2**30)
    kept = replace(model, engine=replace(model.engine, memory=memory))
    keys = (ApiKey("key-of-ann"),)
    warned = lost_blocks_warning(replace(config, models=(kept,), api_keys=keys))
    assert warned is not None and "--tenant-secret" in warned
    for fine in (
        replace(config, models=(kept,)),
        replace(config, api_keys=keys),
        replace(config, models=(kept,), api_keys=keys, tenant_secret="secret"),
    ):
        assert lost_blocks_warning(fine) is None


def test_tokens_of_named_tenants_are_counted(guarded: Served) -> None:
    def counts() -> dict[str, float]:
        start = 'quire:tenant_tokens_total{engine="0",kind='
        end = f'model_name="{MODEL}",tenant="ann"}}'
        kinds = ("prompt", "cached", "output")
        return {kind: guarded.metric(f'{start}"{kind}",{end}') for kind in kinds}

    before = counts()
    complete(guarded, ANN, prompt=[5, 6, 7, 8], max_tokens=6)
    complete(guarded, BOB, prompt=[5, 6, 7, 8], max_tokens=6)
    after = counts()
    assert {kind: after[kind] - before[kind] for kind in after} == {
        "prompt": 4,
        "cached": 3,
        "output": 6,
    }
    lines = guarded.client.get("/metrics").text.splitlines()
    tenants = {line.partition('tenant="')[2].partition('"')[0] for line in lines}
    assert tenants == {"", "ann", "(others)"}
