"""What the processes import: a start takes as long as its imports."""

import subprocess
import sys

import pytest

ENGINE = """
import sys, time
from importlib.resources import files
from quire.engine.config import EngineConfig
from quire.engine.build import build_engine

config = EngineConfig(str(files("quire.models") / "bundled"), num_threads=1)
engine, facts = build_engine(
    config, on_progress=lambda *_: None, clock=time.monotonic, began_s=time.monotonic() - 5
)
engine.close()
assert facts.startup_s["imports"] > 5 and facts.startup_s["load"] > 0
print(*sys.modules)
"""
SERVER = "import sys, quire.server.serve; print(*sys.modules)"
COMMAND = "import sys, quire.server.commands; print(*sys.modules)"


def said_by(script: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("script", "unused"),
    [
        (ENGINE, {"fastapi", "uvicorn", "pydantic", "prometheus_client"}),
        (SERVER, {"torch", "transformers", "numpy", "tqdm"}),
        (COMMAND, {"torch", "transformers", "numpy", "tqdm", "fastapi", "uvicorn", "pydantic"}),
    ],
    ids=["engine", "server", "command"],
)
def test_a_process_imports_what_it_uses_alone(script: str, unused: set[str]) -> None:
    modules = said_by(script)
    assert "quire" in modules
    assert modules & unused == set()
