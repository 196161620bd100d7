"""Agents talk to the real server as their users would have them: programs from their registries,
which send prompts of thousands of tokens and keep a history.

What the model says is planned (`plan.json`), since no small model does what it is asked; all else
is real. `make clients` installs the agents; what is not installed is skipped.
"""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from bench.make_models import AGENT, write_checkpoint

from tests.e2e.clients.clients import CLIENTS, FOLDER
from tests.e2e.clients.running import KEY, command_of, environment, refused_in, run
from tests.e2e.server_process import ServerProcess, eventually, server_process
from tests.real.models import real_folder

CONTEXT = 65536
"""Tokens; a vocabulary of 2,048 makes more of a prompt than others do."""
HISTORY_SHARE = 0.9
PLANNED = re.compile(r"planned (\S+)-0 after '(.*)', shares (\d+)\n")
NUM_TURNS = 4
FIRST, LAST = "Say who you are.", "Count without an end."
FREE, FREE_CONTEXT = "smollm2", 32768
AGENTS = {client.script: client for client in CLIENTS if client.is_agent}
PUTS_BEHIND = "aider/aider_agent.py"
"""The agent that puts files and rules behind the history: prompts share what is before alone."""
FREE_AGENTS = ("node-agents/opencode.py", "aider/aider_agent.py")
"""Agents whose prompts a model of 135 M parameters computes in time."""


class Turn(NamedTuple):
    """The account of one request, in tokens; `shared` are those that an earlier prompt begins with
    too."""

    prompt: int
    shared: int
    cached: int
    output: int
    finish: str


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / AGENT
    write_checkpoint(AGENT, folder, (), seed=1234)
    _change(folder / "config.json", max_position_embeddings=CONTEXT)
    _change(folder / "tokenizer_config.json", model_max_length=CONTEXT)
    return folder


def _change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ServerProcess]:
    command = ("tests.e2e.clients.planned_server", str(FOLDER / "plan.json"))
    flags = ("--served-model-name", AGENT, "--api-key", KEY, "--tool-call-parser", "hermes")
    alias = ("--model-alias", f"claude-*={AGENT}")
    with server_process(str(model), *flags, *alias, command=command) as running:
        yield running


def turns_in(server: ServerProcess, log: str) -> dict[str, Turn]:
    """The turns by the marks that their answers were planned after, in order. Of several requests
    it is the one with the longest prompt, since agents have others make a title of what was asked.
    """
    turns: dict[str, Turn] = {}
    for name, mark, num_shared in PLANNED.findall(log):
        if mark:
            turn = _account(server, name, int(num_shared))
            turns[mark] = max(turns.get(mark, turn), turn)
    return turns


def _account(server: ServerProcess, name: str, num_shared: int) -> Turn:
    headers = {"Authorization": f"Bearer {KEY}"}
    (choice,) = server.client.get(f"/v1/requests/{name}", headers=headers).json()["choices"]
    prompt, cached, output = (
        choice["counts"][f"{each}_tokens"] for each in ("prompt", "cached", "output")
    )
    return Turn(prompt, num_shared, cached, output, choice["finish"])


@pytest.mark.parametrize("script", AGENTS)
def test_an_agent_is_taken_through_its_turns(
    request: pytest.FixtureRequest, tmp_path: Path, script: str
) -> None:
    client = AGENTS[script]
    command = command_of(client)
    server: ServerProcess = request.getfixturevalue("server")
    model: Path = request.getfixturevalue("model")
    start = len(server.log())
    variables = environment(server, AGENT, model, tmp_path)
    run(command, variables | {"CONTEXT": str(CONTEXT), "MAX_TOKENS": "8192"}, tmp_path)
    assert eventually(lambda: server.metric("quire:num_requests_running") == 0, within_s=10)
    log = server.log()[start:]
    assert not refused_in(log), "\n".join(line for line in log.splitlines() if '" 4' in line)
    turns = turns_in(server, log)
    assert len(turns) >= NUM_TURNS and list(turns)[0] == FIRST and list(turns)[-1] == LAST
    assert turns[LAST].finish == "aborted"
    for before, after in pairwise(turns.values()):
        assert after.cached >= HISTORY_SHARE * after.shared, turns
        if script != PUTS_BEHIND:
            assert after.cached >= HISTORY_SHARE * (before.prompt + before.output), turns


@pytest.fixture(scope="module")
def free_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2, whose positions are stretched so that agents' prompts fit."""
    real, folder = real_folder("smollm2"), tmp_path_factory.mktemp("models") / FREE
    folder.mkdir()
    for path in real.iterdir():
        (folder / path.name).symlink_to(path)
    config = json.loads((real / "config.json").read_text())
    length = config["max_position_embeddings"]
    rope = config["rope_parameters"] | {"rope_type": "yarn", "factor": FREE_CONTEXT / length}
    rope["original_max_position_embeddings"] = length
    (folder / "config.json").unlink()
    changed = {"max_position_embeddings": FREE_CONTEXT, "rope_parameters": rope}
    (folder / "config.json").write_text(json.dumps(config | changed))
    return folder


@pytest.fixture(scope="module")
def free_server(free_model: Path) -> Iterator[ServerProcess]:
    with server_process(str(free_model), "--served-model-name", FREE, "--api-key", KEY) as running:
        yield running


@pytest.mark.parametrize("agent", FREE_AGENTS)
def test_real_weights_answer_an_agent(
    request: pytest.FixtureRequest, tmp_path: Path, agent: str
) -> None:
    command = command_of(AGENTS[agent])
    server: ServerProcess = request.getfixturevalue("free_server")
    model: Path = request.getfixturevalue("free_model")
    start = len(server.log())
    variables = environment(server, FREE, model, tmp_path)
    limits = {"CONTEXT": str(FREE_CONTEXT), "MAX_TOKENS": "100"}
    run(command, variables | limits | {"MODEL_IS_FREE": "1"}, tmp_path)
    assert not refused_in(server.log()[start:])
