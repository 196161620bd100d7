"""Clients and frameworks talk to the real server as their users would have them: scripts that know
nothing of Quire but its address. The model's weights are random, but for a lean towards ending what
it has begun, so that grammars alone carry it.

`make clients` installs them; what is not installed is skipped.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
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
    NODE,
    REQUIREMENTS,
    ROOT,
    SCRIPTS,
    Client,
)
from tests.e2e.server_process import ServerProcess, server_process

INSTALLED = ROOT / ".clients"
KEY = "key-of-the-tests"
WITHIN_S = 240
REFUSED = re.compile(r'"([A-Z]+ \S+)" ([45]\d\d) ')
"""In the log, a request that was not answered as was asked."""
NOWHERE = "http://127.0.0.1:9"
"""A proxy that nobody is: whatever asks another host fails."""


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


def environment(server: ServerProcess, model: Path, home: Path) -> Mapping[str, str]:
    """The variables of the clients: those that say where the server is, and that there is no other
    host to ask."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": KEY,
        "OPENAI_MODEL": AGENT,
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": KEY,
        "MODEL_FOLDER": str(model),
        "HTTPS_PROXY": NOWHERE,
        "HTTP_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def run(command: list[str], variables: Mapping[str, str], folder: Path) -> None:
    """Run a script to its end, and end what it leaves. Its last words say what it could not do."""
    said = folder / "said"
    with (
        said.open("w") as output,
        subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(WITHIN_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, said.read_text(errors="replace")[-4000:]


def command_of(client: Client) -> list[str]:
    """Skips where the client is not installed. Node looks for packages beside the script, so that
    it is run where they are installed."""
    if not (INSTALLED / f".ready-{client.group}").exists():
        pytest.skip(f"the clients of {client.group} are not installed: make clients")
    if client.group == NODE:
        return ["node", str(shutil.copy(str(client.path), INSTALLED))]
    return [str(INSTALLED / f"venv-{client.group}" / "bin" / "python"), str(client.path)]


@pytest.mark.parametrize("script", [client.script for client in CLIENTS])
def test_client_runs(request: pytest.FixtureRequest, tmp_path: Path, script: str) -> None:
    (client,) = [each for each in CLIENTS if each.script == script]
    command = command_of(client)
    server: ServerProcess = request.getfixturevalue("server")
    model: Path = request.getfixturevalue("model")
    before = len(server.log())
    run(command, environment(server, model, tmp_path), tmp_path)
    refused = set(REFUSED.findall(server.log()[before:]))  # though the client went on without
    assert refused == {(asked, "401") for asked in client.without_key}


def test_every_script_is_a_row_of_the_table_and_every_group_has_its_pins() -> None:
    scripts = {path.relative_to(SCRIPTS).as_posix() for path in SCRIPTS.glob("*/*.*")}
    assert {client.script for client in CLIENTS} == scripts
    groups = {path.stem for path in REQUIREMENTS.glob("*.txt")} | {NODE}
    assert {client.group for client in CLIENTS} == groups
    assert all(client.versions() and client.purpose() for client in CLIENTS)


def test_the_document_has_a_row_for_every_client(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--record", default=False):
        pytest.skip("the document is being written")
    recorded = DOCUMENT.read_text(encoding="utf-8").partition(BEGINS)[2].partition(ENDS)[0]
    for client in CLIENTS:
        assert f"| {client.versions()} | {client.purpose()} |" in recorded, client.script
