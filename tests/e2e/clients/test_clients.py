"""Frameworks for agents talk to the real server as their users would have them: scripts that know
nothing of Quire but its address. The model's weights are random, but for a lean towards ending what
it has begun, so that grammars alone carry it.

`make clients` installs the frameworks; without them these tests are skipped.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from bench.make_models import AGENT, write_checkpoint
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tests.e2e.server_process import ServerProcess, server_process

FOLDER = Path(__file__).parent
SCRIPTS = FOLDER / "scripts"
INSTALLED = FOLDER.parents[2] / ".clients"
PYTHON = INSTALLED / "venv" / "bin" / "python"
KEY = "key-of-the-tests"
WITHIN_S = 240
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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("models") / AGENT
    write_checkpoint(AGENT, folder, (), seed=1234)
    lean_towards_ending(folder)
    flags = ("--served-model-name", AGENT, "--api-key", KEY, "--tool-call-parser", "hermes")
    with server_process(str(folder), *flags) as running:
        yield running


def environment(server: ServerProcess) -> Mapping[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": KEY,
        "OPENAI_MODEL": AGENT,
        "HTTPS_PROXY": NOWHERE,
        "HTTP_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1",
    }


def run(command: list[str], server: ServerProcess, folder: Path) -> None:
    """Run a script to its end. Its last words say what it could not do."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(server),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.mark.skipif(not PYTHON.exists(), reason="the frameworks are not installed: make clients")
@pytest.mark.parametrize("script", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_script_in_python_runs(server: ServerProcess, tmp_path: Path, script: str) -> None:
    run([str(PYTHON), str(SCRIPTS / f"{script}.py")], server, tmp_path)


@pytest.mark.skipif(
    shutil.which("node") is None or not (INSTALLED / "node_modules").exists(),
    reason="node and the frameworks are not installed: make clients",
)
@pytest.mark.parametrize("script", sorted(path.stem for path in SCRIPTS.glob("*.mjs")))
def test_script_in_node_runs(server: ServerProcess, script: str) -> None:
    """Node looks for packages beside the script, so that this runs where they are installed."""
    copied = shutil.copy(SCRIPTS / f"{script}.mjs", INSTALLED)
    run(["node", str(copied)], server, INSTALLED)
