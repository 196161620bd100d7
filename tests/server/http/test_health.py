"""Health from process start, and readiness that follows the engine."""

import re
import time
from dataclasses import replace

import msgspec
import pytest

from quire.engine.messages import ScoreFacts
from quire.engines.process.client import EnginePhase
from quire.server.config import ApiKey
from tests.server.served import BUNDLED, MODEL, Served, eventually, plain_config, serving


def statuses(served: Served) -> dict[str, int]:
    paths = ("/livez", "/readyz", "/health", "/ping", "/startupz")
    return {path: served.client.get(path).status_code for path in paths}


def test_a_ready_server_says_so(served: Served) -> None:
    assert set(statuses(served).values()) == {200}


def test_loading_is_alive_and_tells_its_progress() -> None:
    with serving(plain_config(), loaded=False) as served:
        assert eventually(lambda: served.engine.phase is EnginePhase.LOADING)
        found = statuses(served)
        assert found.pop("/livez") == 200 and set(found.values()) == {503}
        progress = served.client.get("/startupz").json()["progress"]
        assert (progress["phase"], progress["done"], progress["total"]) == ("weights", 1, 2)
        assert progress["elapsed_s"] >= 0
        reply = served.complete(prompt="x")
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "model_loading"
        assert int(reply.headers["retry-after"]) > 0
        assert served.client.get("/v1/models").json()["data"][0]["id"] == MODEL
        assert served.client.get("/metrics").status_code == 200
        served.do(served.engine.starts.set)
        assert eventually(lambda: served.client.get("/readyz").status_code == 200)
        assert served.complete(prompt="x").status_code == 200


def test_a_stuck_engine_is_told_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    with serving(replace(plain_config(), stuck_after_s=1.0)) as served:
        served.engine.progress_age_s = 1.5
        assert eventually(lambda: "the engine is stuck" in caplog.text)
        time.sleep(0.3)
        served.engine.progress_age_s = 0.0
        assert eventually(lambda: "the engine moves on" in caplog.text)
    told = [
        record for record in caplog.records if record.name == "quire.server.models.served_model"
    ]
    assert [record.levelname for record in told if "engine" in record.message] == [
        "ERROR",
        "WARNING",
    ]


def test_stuck_engine_is_not_ready() -> None:
    with serving(replace(plain_config(), stuck_after_s=1.0)) as served:
        served.engine.progress_age_s = 1.5
        reply = served.client.get("/readyz")
        assert reply.status_code == 503
        assert reply.json() == {"status": "stuck"}
        assert served.client.get("/livez").status_code == 200
        assert served.metric("quire:last_step_age_seconds") == 1.5
        served.engine.progress_age_s = 0.0
        assert served.client.get("/readyz").status_code == 200


def test_dead_engine_is_neither_alive_nor_ready() -> None:
    with serving(plain_config()) as served:
        served.do(lambda: served.engine.die("out of memory"))
        assert set(statuses(served).values()) == {503}
        assert served.client.get("/livez").json() == {"status": "down", "reason": "out of memory"}


def test_missing_tokenizer_is_a_failed_start(tmp_path: object) -> None:
    config = plain_config(model=str(tmp_path))
    with serving(config, loaded=False) as served:
        assert eventually(lambda: served.client.get("/livez").status_code == 503)
        assert "tokenizer.json" in served.client.get("/livez").json()["reason"]


@pytest.mark.parametrize("path", ["/version", "/v1/server_info", "/docs", "/openapi.json"])
def test_information_is_served(served: Served, path: str) -> None:
    assert served.client.get(path).status_code == 200


def test_the_page_of_the_api_needs_no_internet_and_no_key() -> None:
    with serving(replace(plain_config(), api_keys=(ApiKey("key"),))) as served:
        page = served.client.get("/docs").text
        links = re.findall(r"""(?:src|href|url)\s*[=:]\s*['"]([^'"]+)""", page)
        assert len(links) >= 4 and all(link.startswith("/") for link in links)
        for link in links:
            assert served.client.get(link).status_code == 200, link
        assert served.client.get("/docs/assets/../../v1/models").status_code != 200


def test_server_info_has_facts_but_no_keys() -> None:
    keys = (ApiKey("hush-hush"),)
    with serving(replace(plain_config(), api_keys=keys, tenant_secret="not-this")) as served:
        served.client.headers["authorization"] = "Bearer hush-hush"
        reply = served.client.get("/v1/server_info")
        assert reply.json()["facts"]["block_size"] == 16
        assert reply.json()["facts"]["receipt"][0] == ["weights", 1000]
        engine = reply.json()["config"]["engine"]
        assert (engine["model"], engine["block_size"], engine["log_level"]) == (BUNDLED, 16, "info")
        assert "hush" not in reply.text and "not-this" not in reply.text


def test_server_info_has_the_memory_receipt() -> None:
    with serving(plain_config(), loaded=False) as served:
        assert served.client.get("/v1/server_info").json()["memory"] is None
        served.do(served.engine.starts.set)
        assert eventually(lambda: served.client.get("/readyz").status_code == 200)
        memory = served.client.get("/v1/server_info").json()["memory"]
    assert memory == {
        "lines": {"weights": 1000, "kv_cache": 2000},
        "block_size": 16,
        "num_blocks": 1000,
        "num_host_blocks": 0,
        "num_states": 0,
        "num_host_states": 0,
        "max_model_len": 256,
        "max_num_batched_tokens": 512,
        "kv_dtype": "int8",
        "kv_tokens": 15984,
        "kv_token_bytes": 2,
        "layer_groups": [
            {
                "kind": "full_attention",
                "reach": None,
                "num_layers": 3,
                "is_kept_whole": False,
                "num_sharing": 0,
            }
        ],
        "padding_share": 0.0,
        "max_model_len_fits": 256,
        "max_concurrency": 62.4375,
        "why_num_blocks": "all that memory allows",
        "why_max_num_batched_tokens": "as --max-num-batched-tokens says",
        "passed_token_bytes": 2,
        "unseen_token_bytes": 0,
        "why_kept_whole": "",
    }


def test_models_are_listed(served: Served) -> None:
    body = served.client.get("/v1/models").json()
    assert [card["id"] for card in body["data"]] == [MODEL, "other-name"]
    assert body["data"][0]["max_model_len"] == 256
    assert body["data"][0]["kind"] == "generate"
    assert body["data"][0]["capabilities"] == {
        "completion": True,
        "chat": True,
        "tools": True,
        "reasoning": False,
        "structured_outputs": True,
        "embeddings": True,
        "rerank": True,
        "tool_format": "hermes",
    }
    assert served.client.get(f"/v1/models/{MODEL}").json()["id"] == MODEL


def test_models_that_load_have_no_capabilities_yet() -> None:
    with serving(plain_config(), loaded=False) as served:
        (card, _) = served.client.get("/v1/models").json()["data"]
        assert (card["max_model_len"], card["capabilities"]) == (None, None)


def test_what_load_balancers_ask_is_answered_to_head_too(served: Served) -> None:
    paths = ("/livez", "/readyz", "/health", "/ping", "/startupz", "/version", "/v1/models")
    for path in (*paths, f"/v1/models/{MODEL}", "/v1/models/none", "/metrics", "/openapi.json"):
        whole = served.client.get(path, headers={"accept-encoding": "identity"})
        head = served.client.head(path, headers={"accept-encoding": "identity"})
        assert (head.status_code, head.content) == (whole.status_code, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
        if path != "/metrics":
            assert head.headers["content-length"] == str(len(whole.content))
    assert served.client.head("/v1/completions").status_code == 405


def test_capabilities_are_those_of_the_options() -> None:
    config = plain_config()
    plain = replace(config.model, tool_call_parser="none", reasoning_parser="deepseek_r1")
    with serving(replace(config, models=(plain,))) as served:
        (card, _) = served.client.get("/v1/models").json()["data"]
        assert not card["capabilities"]["tools"] and card["capabilities"]["reasoning"]
        assert card["capabilities"]["tool_format"] is None


@pytest.mark.parametrize(("scores", "kind"), [(None, "embed"), (ScoreFacts(True), "score")])
def test_an_encoder_is_for_embeddings_or_scores_alone(scores: ScoreFacts | None, kind: str) -> None:
    with serving(plain_config(), loaded=False) as served:
        engine = served.engine
        engine.ready_facts = msgspec.structs.replace(
            engine.ready_facts,
            is_causal=False,
            embeddings=None if scores else engine.ready_facts.embeddings,
            scores=scores,
        )
        served.do(engine.starts.set)
        assert eventually(lambda: served.client.get("/readyz").status_code == 200)
        (card, _) = served.client.get("/v1/models").json()["data"]
        assert card["kind"] == kind
        able = [name for name, is_able in card["capabilities"].items() if is_able is True]
        assert able == ["rerank" if scores else "embeddings"]


def test_a_server_whose_engine_restarts_is_alive_and_not_ready() -> None:
    with serving(plain_config()) as served:
        served.engine.phase = EnginePhase.RESTARTING
        found = statuses(served)
        assert found.pop("/livez") == 200 and set(found.values()) == {503}
        assert served.client.get("/readyz").json() == {"status": "restarting"}
        started = served.client.get("/startupz").json()
        assert started["status"] == "restarting" and started["progress"]["total"] > 0
        assert served.metric("quire:engine_restarting") == 1
        served.engine.phase = EnginePhase.READY
        assert set(statuses(served).values()) == {200}
        assert served.metric("quire:engine_restarting") == 0
