"""Real prompts at a real server, one after another and by many clients at once."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

import httpx

from tests.e2e.server_process import ServerProcess

NUM_CLIENTS = 32
MAX_TOKENS = 24
MAX_MODEL_LEN = 1024
NUM_BLOCKS = 80
"""A quarter of what the prompts of all clients need, and enough for one of full length."""
TIGHT = (
    *("--max-model-len", str(MAX_MODEL_LEN), "--num-gpu-blocks-override", str(NUM_BLOCKS)),
    *("--swap-space", "1", "--preemption-mode", "swap"),
)
"""Flags of a server that preempts and swaps under NUM_CLIENTS clients."""
ANSWER_WITHIN_S = 280
SWAPPED = 'quire:preemptions_total{kind="swap"}'
RESTARTS = "quire:engine_restarts_total"
HITS = "quire:prefix_cache_hits_total"


class Answer(NamedTuple):
    """The answer to a prompt, as text and tokens; `prompt_ids` are the tokens of its chat."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str


def answer(server: ServerProcess, prompt: str) -> Answer:
    """The greedy answer to one prompt in a chat."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "return_token_ids": True,
    }
    url = server.url + "/v1/chat/completions"
    reply = httpx.post(url, json=body, timeout=ANSWER_WITHIN_S)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    choice = found["choices"][0]
    return Answer(
        tuple(found["prompt_token_ids"]),
        tuple(choice["token_ids"]),
        choice["message"]["content"],
        choice["finish_reason"],
    )


def completion(server: ServerProcess, prompt: str) -> Answer:
    """The greedy continuation of one text, for a model without a chat template."""
    body = {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "return_token_ids": True}
    reply = httpx.post(server.url + "/v1/completions", json=body, timeout=ANSWER_WITHIN_S)
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    return Answer(
        tuple(choice["prompt_token_ids"]),
        tuple(choice["token_ids"]),
        choice["text"],
        choice["finish_reason"],
    )


Send = Callable[[ServerProcess, str], Answer]


def answers_alone(
    server: ServerProcess, prompts: Sequence[str], send: Send = answer
) -> list[Answer]:
    """The answers to prompts that run one after another."""
    return [send(server, prompt) for prompt in prompts]


def answers_in_company(
    server: ServerProcess,
    prompts: Sequence[str],
    *,
    seed: int,
    kill: bool = False,
    send: Send = answer,
) -> list[Answer]:
    """The answers of NUM_CLIENTS clients, sent in another order, in the order of `prompts`.

    With `kill` the engine is killed when a third of the answers have come.
    """
    order = random.Random(seed).sample(range(len(prompts)), len(prompts))
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        sent = {index: pool.submit(send, server, prompts[index]) for index in order}
        if kill:
            for number, _ in enumerate(as_completed(sent.values())):
                if number == len(prompts) // 3:
                    server.engine_process().kill()
                    break
        return [sent[index].result() for index in range(len(prompts))]


def others(found: Sequence[Answer], alone: Sequence[Answer]) -> list[tuple[int, str, str]]:
    """The answers that differ: their number, the text found and that of the prompt alone."""
    assert len(found) == len(alone)
    pairs = enumerate(zip(found, alone, strict=True))
    return [(index, a.text, b.text) for index, (a, b) in pairs if a != b]
