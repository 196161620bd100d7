"""What the processes import: a start takes as long as its imports."""

import subprocess
import sys
from functools import cache

import pytest

from quire.models.loading.dtype_choice import cpu_has_fast_bfloat16
from tests.long import long_but_for

ENGINE = """
import sys, time
from importlib.resources import files
from quire.engine.config import EngineConfig, ModelConfig
read = []
sys.addaudithook(lambda event, args: event == "open" and read.append(str(args[0])))
from quire.models.loading.lean_import import import_transformers

import_transformers()
print("reads:" + str(sum(each.endswith("/modeling_llama.py") for each in read)))
from quire.engine.startup.build import build_engine

config = EngineConfig(ModelConfig(str(files("quire.models") / "bundled"), num_threads=1))
engine, facts = build_engine(
    config, on_progress=lambda *_: None, clock=time.monotonic, began_s=time.monotonic() - 5
)
engine.close()
assert facts.startup_s["imports"] > 5 and facts.startup_s["load"] > 0
print(*sys.modules)
"""
COMPILE = """
import torch
from quire.models.loading.lean_import import import_transformers

import_transformers()
assert "torch._dynamo.utils" not in sys.modules
assert torch.distributed.is_available()
{first}
import torch._dynamo as compiler
assert sys.modules["torch._dynamo"] is compiler is torch._dynamo
assert sys.modules["torch._dynamo.utils"] is compiler.utils
assert compiler.utils.__spec__.name == "torch._dynamo.utils"
doubled = torch.compile(lambda x: 2 * x, backend="eager")
assert doubled(torch.ones(2)).tolist() == [2, 2]
print("done")
"""
FOR_SUBCLASSES = set() if cpu_has_fast_bfloat16() else {"torch.distributed.tensor"}
"""Modules that torch imports for the first operation of a tensor subclass, as `LazyWeight` is."""
SERVER = "import sys, quire.server.app.serve; print(*sys.modules)"
COMMAND = "import sys, quire.server.cli.commands; print(*sys.modules)"


@cache
def said_by(script: str) -> frozenset[str]:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return frozenset(done.stdout.split())


@pytest.mark.parametrize(
    ("script", "unused"),
    [
        (
            ENGINE,
            {
                *("torch._dynamo.utils", "torch._inductor", "torch.distributed.tensor"),
                *("torch.distributed.fsdp", "fastapi", "starlette", "uvicorn", "pydantic"),
                "httptools",
            }
            - FOR_SUBCLASSES,
        ),
        (SERVER, {"torch", "transformers", "numpy", "tqdm"}),
        (COMMAND, {"torch", "transformers", "numpy", "tqdm", "fastapi", "uvicorn", "pydantic"}),
    ],
    ids=["engine", "server", "command"],
)
def test_a_process_imports_what_it_uses_alone(script: str, unused: set[str]) -> None:
    modules = said_by(script)
    assert "quire" in modules
    assert modules & unused == set()


def test_transformers_reads_the_files_of_its_models_once() -> None:
    assert "reads:1" in said_by(ENGINE)


ASKS = (
    "from transformers.masking_utils import TransformGetItemToIndex as mode\nwith mode(): pass",
    "import torch._dynamo.polyfills.heapq",
    "doubled = torch.compile(lambda x: 2 * x, backend='eager')",
    "from torch._dynamo.utils import counters",
    "from torch._dynamo._trace_wrapped_higher_order_op import trace_wrapped",
    "torch._dynamo.reset()",
)
"""In every run one of transformers' own; whatever is first, the test itself then imports and
compiles."""


@long_but_for(ASKS[:1], "first", ASKS)
def test_whoever_asks_for_the_compiler_gets_the_real_one(first: str) -> None:
    assert said_by("import sys" + COMPILE.format(first=first)) == {"done"}
