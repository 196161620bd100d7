"""Clients and frameworks talk to the real server as their users would have them: scripts that know
nothing of Quire but its address. The model's weights are random, but for a lean towards ending what
it has begun, so that grammars alone carry it.

`make clients` installs them; what is not installed is skipped.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.make_models import AGENT, write_checkpoint
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tests.e2e.clients.clients import (
    BEGINS,
    CLIENTS,
    DOCUMENT,
    ENDS,
    REQUIREMENTS,
    SCRIPTS,
)
from tests.e2e.clients.running import KEY, command_of, environment, refused_in, run
from tests.e2e.server_process import ServerProcess, server_process

ENDING = {'"': 7.0, "}": 2.0, "]": 2.0, "<|end|>": 5.0}
"""The tokens that end strings, objects, arrays and answers, and what their logits gain, about."""
EMBEDDING = "model.embed_tokens.weight"


def lean_towards_ending(folder: Path) -> None:
    """Give the checkpoint a head of its own, which adds ENDING: a first component that is the same
    for every token is what it multiplies."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    weights = load_file(folder / "model.safetensors")
    head = weights[EMBEDDING].clone()
    spread = float(head.std())
    head[:, 0] = 0
    for text, added in ENDING.items():
        head[tokenizer.token_to_id(text), 0] = added / 5
    weights[EMBEDDING][:, 0] = 5 * spread
    weights["lm_head.weight"] = head
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / AGENT
    write_checkpoint(AGENT, folder, (), seed=1234)
    lean_towards_ending(folder)
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    batches = str(tmp_path_factory.mktemp("batches"))
    flags = ("--served-model-name", AGENT, "--api-key", KEY, "--tool-call-parser", "hermes")
    with server_process(str(model), *flags, "--batch-dir", batches) as running:
        yield running


@pytest.mark.parametrize("script", [each.script for each in CLIENTS if not each.is_agent])
def test_client_runs(request: pytest.FixtureRequest, tmp_path: Path, script: str) -> None:
    (client,) = [each for each in CLIENTS if each.script == script]
    command = command_of(client)
    server: ServerProcess = request.getfixturevalue("server")
    model: Path = request.getfixturevalue("model")
    before = len(server.log())
    run(command, environment(server, AGENT, model, tmp_path), tmp_path)
    refused = refused_in(server.log()[before:])  # though the client went on without
    assert refused == {(asked, "401") for asked in client.without_key}


def test_every_script_is_a_row_of_the_table_and_every_group_has_its_pins() -> None:
    scripts = {path.relative_to(SCRIPTS).as_posix() for path in SCRIPTS.glob("*/*.*")}
    assert {client.script for client in CLIENTS} == scripts
    groups = {path.stem for path in REQUIREMENTS.iterdir()}
    assert {client.group for client in CLIENTS} == groups
    assert all(client.versions() and client.purpose() for client in CLIENTS)


def test_the_document_has_a_row_for_every_client(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--record", default=False):
        pytest.skip("the document is being written")
    recorded = DOCUMENT.read_text(encoding="utf-8").partition(BEGINS)[2].partition(ENDS)[0]
    for client in CLIENTS:
        assert f"| {client.versions()} | {client.purpose()} |" in recorded, client.script
