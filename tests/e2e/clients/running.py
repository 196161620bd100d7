"""Runs the scripts of clients as their users would: beside a server on loopback, with no other host
in reach."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.clients.clients import NODE, NODE_AGENTS, ROOT, SCRIPTS, Client
from tests.e2e.server_process import ServerProcess

INSTALLED = ROOT / ".clients"
KEY = "key-of-the-tests"
WITHIN_S = 240
REFUSED = re.compile(r'"([A-Z]+ \S+)" ([45]\d\d) ')
NOWHERE = "http://127.0.0.1:9"
"""A proxy that nobody is: whatever asks another host fails."""


def environment(server: ServerProcess, name: str, model: Path, home: Path) -> dict[str, str]:
    """The variables of the clients: those that say where the server is, which has the model of a
    folder under a name, and that there is no other host to ask."""
    agents = INSTALLED / NODE_AGENTS / "node_modules" / ".bin"
    return {
        "PATH": f"{agents}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(SCRIPTS),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(home),
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": KEY,
        "OPENAI_MODEL": name,
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
    it is run where they are installed; an agent of node is a command, which Python runs."""
    if not (INSTALLED / f".ready-{client.group}").exists():
        pytest.skip(f"the clients of {client.group} are not installed: make clients")
    if client.group == NODE:
        return ["node", str(shutil.copy(str(client.path), INSTALLED))]
    if client.group == NODE_AGENTS:
        return [sys.executable, str(client.path)]
    return [str(INSTALLED / f"venv-{client.group}" / "bin" / "python"), str(client.path)]


def refused_in(log: str) -> set[tuple[str, str]]:
    """The requests in a server's log that were not answered as was asked, each with its status."""
    return set(REFUSED.findall(log))
