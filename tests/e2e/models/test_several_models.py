"""Two models in real processes on one server: each answers as itself, and none starves."""

import asyncio
import shutil
import time
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from tests.e2e.server_process import (
    ENGINES,
    REPLICAS,
    ServerProcess,
    engines_of,
    eventually,
    server_process,
)

BUNDLED = files("quire.models") / "bundled"
PROMPT = "Once upon a time"
NUM_TOKENS = 24
MODELS = """
- name: bundled
  model: {folder}
  dtype: float32
  num-threads: 1
  kv-cache-tokens: 4096
- name: other
  model: {other}
  dtype: float32
  num-threads: 1
  kv-cache-tokens: 4096
- name: lazy
  model: {folder}
  dtype: float32
  num-threads: 1
  kv-cache-tokens: 4096
  load: on-first-use
  unload-after-s: 0.3
"""


def models_file(folder: Path) -> Path:
    """Write the file, and a checkpoint that says something else."""
    other = folder / "other"
    shutil.copytree(str(BUNDLED), other)
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].flip(0).contiguous()
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    path = folder / "models.yaml"
    path.write_text(MODELS.format(folder=BUNDLED, other=other))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = models_file(tmp_path_factory.mktemp("models"))
    with server_process("--models-config-file", str(path)) as running:
        yield running


def body(model: str, num_tokens: int = NUM_TOKENS) -> dict[str, object]:
    greedy = {"temperature": 0, "ignore_eos": True}
    return {"model": model, "prompt": PROMPT, "max_tokens": num_tokens, **greedy}


def text(server: ServerProcess, model: str, num_tokens: int = NUM_TOKENS) -> str:
    reply = server.client.post("/v1/completions", json=body(model, num_tokens))
    return str(reply.raise_for_status().json()["choices"][0]["text"])


def states(server: ServerProcess) -> Mapping[str, str]:
    cards = server.client.get("/v1/models").json()["data"]
    return {card["id"]: card["status"]["value"] for card in cards}


def test_each_model_is_a_process_and_answers_with_its_own_text(server: ServerProcess) -> None:
    num_engines = 2 * int(REPLICAS or ENGINES or 1)
    assert eventually(lambda: len(engines_of(server.process.pid)) == num_engines, 30)
    bundled, other = text(server, "bundled"), text(server, "other")
    assert bundled != other
    assert text(server, "lazy") == bundled
    assert eventually(lambda: states(server)["lazy"] == "unloaded", 30)
    assert eventually(lambda: len(engines_of(server.process.pid)) == num_engines, 30)


@pytest.mark.long  # each model is a process of its own, which every run shows
def test_a_crowd_on_one_model_does_not_starve_the_other(server: ServerProcess) -> None:
    """32 streams of one model never end while somebody asks the other again and again."""

    async def crowd(client: httpx.AsyncClient, until: asyncio.Event) -> None:
        while not until.is_set():
            (await client.post("/v1/completions", json=body("bundled", 200))).raise_for_status()

    async def run() -> list[float]:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            until = asyncio.Event()
            others = [asyncio.create_task(crowd(client, until)) for _ in range(32)]
            await asyncio.sleep(1.0)
            times = []
            for _ in range(12):
                began = time.monotonic()
                reply = await client.post("/v1/completions", json=body("other"))
                times.append(time.monotonic() - began)
                assert reply.status_code == 200
            until.set()
            await asyncio.gather(*others)
        return times

    assert text(server, "other")
    times = sorted(asyncio.run(run()))
    assert server.metric('quire:generation_tokens_total{model_name="bundled"}') > 32 * 200
    assert times[len(times) // 2] < 10, times
