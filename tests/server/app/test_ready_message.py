"""The line at ready holds a request that a shell can send."""

import json
import shlex

import pytest

from quire.engine.config import EngineConfig, ModelConfig
from quire.server.app.ready_message import ready_text
from quire.server.config import ApiKey, ServedModelConfig, ServerConfig
from quire.server.http.listen import bind, local_url_of

URL = "http://127.0.0.1:8000"
STARTUP_S = {"imports": 1.94, "files": 0.01, "load": 0.3, "total": 2.345}


def config_of(name: str, *keys: str) -> ServerConfig:
    served = ServedModelConfig(EngineConfig(ModelConfig("folder")), (name, "another"))
    return ServerConfig((served,), api_keys=tuple(map(ApiKey, keys)))


@pytest.mark.parametrize("name", ["quire-bundled", 'org/it\'s a "model"', "modèle $HOME `x`"])
def test_the_request_asks_for_the_model_that_is_served(name: str) -> None:
    text = ready_text(config_of(name), URL, STARTUP_S, is_chat=False)
    said, _, pasted = text.partition("\n")
    assert said == f"ready at {URL} after 2.3 s (imports 1.9, load 0.3); try"
    command, url, flag, header, data, body = shlex.split(pasted)
    assert (command, url, flag, data) == ("curl", f"{URL}/v1/completions", "-H", "-d")
    assert header == "Content-Type: application/json"
    assert json.loads(body)["model"] == name


def test_a_model_that_chats_is_asked_a_question() -> None:
    text = ready_text(config_of("a"), URL, STARTUP_S, is_chat=True)
    _, url, *_, body = shlex.split(text.partition("\n")[2])
    assert url == f"{URL}/v1/chat/completions"
    (message,) = json.loads(body)["messages"]
    assert message == {"role": "user", "content": "What is the capital of France?"}


def test_keys_are_asked_for_and_not_shown() -> None:
    text = ready_text(config_of("a", "hush"), URL, STARTUP_S, is_chat=False)
    assert "-H 'Authorization: Bearer YOUR_KEY'" in text and "hush" not in text
    without = ready_text(config_of("a"), URL, {"total": 1.0}, is_chat=False)
    assert "Authorization" not in without


def test_a_server_on_all_addresses_is_asked_on_this_machine() -> None:
    with bind("0.0.0.0", 0) as listener:
        assert local_url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    with bind("127.0.0.1", 0) as listener:
        assert local_url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
