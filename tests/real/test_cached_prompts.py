"""SmolLM2 in bfloat16 answers a seeded request the same once its prompt is in the prefix cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from tokenizers import Tokenizer

from tests.e2e.server_process import ServerProcess, server_process
from tests.real.models import real_folder

pytestmark = pytest.mark.timeout(900)
"""Where cores are shared with other tests, the first test of a server waits for minutes."""
ROOT = Path(__file__).parents[2]
BLOCK_SIZE = 16
NUM_CACHED = 3 * BLOCK_SIZE
PAGE_TOKENS = 97
"""The tokens from one prompt's beginning to the next's in the page that they are of."""


class Answer(NamedTuple):
    """Tokens with their log probabilities, and how many of the prompt's tokens were cached."""

    token_ids: list[int]
    logprobs: list[float]
    num_cached: int


@pytest.fixture(scope="module")
def folder() -> Path:
    return real_folder("smollm2")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with server_process(str(folder), "--max-model-len", "256", "--block-size", "16") as running:
        yield running


def answer(server: ServerProcess, prompt: list[int]) -> Answer:
    body = {
        "prompt": prompt,
        "max_tokens": 8,
        "temperature": 0.8,
        "seed": 7,
        "logprobs": 1,
        "return_token_ids": True,
    }
    reply = httpx.post(server.url + "/v1/completions", json=body, timeout=280)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    (choice,) = found["choices"]
    details = found["usage"]["prompt_tokens_details"] or {}
    return Answer(
        choice["token_ids"],
        choice["logprobs"]["token_logprobs"],
        details.get("cached_tokens", 0),
    )


def test_seeded_answers_are_the_same_once_their_prompts_are_cached(
    server: ServerProcess, folder: Path
) -> None:
    """Of 16 prompts 1 to 16 tokens are left after their cached blocks."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(page).ids
    for left in range(1, BLOCK_SIZE + 1):
        first = left * PAGE_TOKENS
        prompt = ids[first : first + NUM_CACHED + left]
        fresh, cached = answer(server, prompt), answer(server, prompt)
        assert (fresh.num_cached, cached.num_cached) == (0, NUM_CACHED)
        assert (cached.token_ids, cached.logprobs) == (fresh.token_ids, fresh.logprobs)
