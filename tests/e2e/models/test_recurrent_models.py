"""A model with recurrent layers behind a real server: turns of a conversation go on from snapshots,
and what the cache has is told.
"""

import json
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import openai
import pytest
import torch
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.server_process import ServerProcess, server_process
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED

BUNDLED = Path(str(files("quire.models") / "bundled"))
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
BLOCK_SIZE = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    vocab_size = json.loads((BUNDLED / "config.json").read_text())["vocab_size"]
    family = SERVED["qwen3_5_text"]
    sizes = {"vocab_size": vocab_size, "max_position_embeddings": 2048}
    family = family._replace(fields={**family.fields, **sizes})
    folder = save_checkpoint(family, tmp_path_factory.mktemp("recurrent"), torch.float32)
    for name in TOKENIZER:
        shutil.copy(BUNDLED / name, folder)
    with server_process(
        *("--model", str(folder), "--served-model-name", "recurrent", "--num-threads", "1"),
        *("--kv-cache-tokens", "8192", "--block-size", str(BLOCK_SIZE), "--swap-space", "0.05"),
    ) as running:
        yield running


def test_turns_of_a_conversation_go_on_from_snapshots(server: ServerProcess) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": "Be brief. " * 20}]
    seen = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"Question {turn}?"})
        parts = list(
            client.chat.completions.create(
                model="recurrent",
                messages=messages,
                max_tokens=24,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
        )
        usage = parts[-1].usage
        assert usage is not None and usage.prompt_tokens_details is not None
        seen.append((usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0))
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        messages.append({"role": "assistant", "content": text})
    assert seen[0][1] == 0
    for (before, _), (_, cached) in zip(seen, seen[1:], strict=False):
        assert cached >= before - 2 * BLOCK_SIZE


def test_the_same_is_said_over_a_snapshot_and_anew(server: ServerProcess) -> None:
    body = {"model": "recurrent", "prompt": "a b c d e f g " * 12, "max_tokens": 16}
    greedy = {**body, "temperature": 0, "ignore_eos": True, "logprobs": 2}
    first = server.client.post("/v1/completions", json=greedy).raise_for_status().json()
    again = server.client.post("/v1/completions", json=greedy).raise_for_status().json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["choices"][0]["logprobs"]["tokens"] == first["choices"][0]["logprobs"]["tokens"]


def test_a_probe_says_that_the_snapshot_is_missing(server: ServerProcess) -> None:
    """Prompts part after 12 blocks, and none of those before left a snapshot there."""
    shared = [7 + number % 900 for number in range(100)]
    bodies: list[dict[str, object]] = [
        {"model": "recurrent", "prompt": [*shared, *range(first, first + 90)]}
        for first in (1000, 1200, 1400)
    ]

    def compute(body: dict[str, object]) -> None:
        server.client.post("/v1/completions", json={**body, "max_tokens": 1}).raise_for_status()

    def probe(body: dict[str, object]) -> dict[str, object]:
        found = server.client.post("/v1/cache/probe", json=body).raise_for_status().json()
        assert isinstance(found, dict)
        return found

    compute(bodies[0])
    found = probe(bodies[1])
    assert found["miss"] == {"reason": "state", "token": 96}
    compute(bodies[1])
    found = probe(bodies[2])
    assert (found["cached_tokens"], found["state"]) == (96, "device")
    assert found["miss"] == {"reason": "differs", "token": 100}


def test_receipt_and_metrics_count_states(server: ServerProcess) -> None:
    info = server.client.get("/v1/server_info").json()
    memory = info["memory"]
    assert memory["num_states"] > 2
    assert memory["lines"]["states"] > 0
    assert memory["num_host_states"] > 0 and memory["num_host_blocks"] > 0
    metrics = server.client.get("/metrics").text
    assert "quire:recurrent_states{" in metrics
    assert 'state="active"} 0.0' in metrics and 'state="host_cached"} 0.0' in metrics
    assert "quire:recurrent_states_moved_total{" in metrics
