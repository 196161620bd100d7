"""A real server with its prefix cache on disk, killed at random again and again:
`python -m tests.e2e.disk_kills --kills 50`. Every start must serve, and every text be that of a
server without a disk.
"""

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.e2e.server_process import MODEL, ServerProcess, server_process

FLAGS = ("--dtype", "float32", "--log-level", "warning")
WORDS = "the old ship left the quiet harbour before dawn with nobody on deck but the cat and"
PROMPTS = tuple(f"{WORDS} {WORDS} {WORDS} {number} {WORDS} {number}" for number in range(8))
"""They begin alike, and go on each by itself."""
MAX_TOKENS = 12
MAX_LIFE_S = 1.5


class Answer(NamedTuple):
    """A text, and how many tokens of its prompt were not computed."""

    text: str
    num_cached: int


class Outcome(NamedTuple):
    """The texts that came, those of them that are wrong, and the tokens that were loaded."""

    num_texts: int
    num_wrong: int
    num_loaded: int


def disk_flags(folder: Path, max_bytes: str = "64M") -> tuple[str, ...]:
    return ("--prefix-cache-dir", str(folder), "--prefix-cache-bytes", max_bytes)


def ask(server: ServerProcess, prompt: str) -> Answer:
    """Complete a prompt greedily."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
    reply = server.client.post("/v1/completions", json=body)
    reply.raise_for_status()
    answer = reply.json()
    details = answer["usage"]["prompt_tokens_details"] or {}
    return Answer(answer["choices"][0]["text"], details.get("cached_tokens", 0))


def undisturbed() -> dict[str, str]:
    """What a server without a disk says."""
    with server_process(*FLAGS) as server:
        return {prompt: ask(server, prompt).text for prompt in PROMPTS}


def run_killed(folder: Path, expected: Mapping[str, str], seed: int) -> Outcome:
    """Ask for all at once, kill the server after a while, and compare what came."""
    chance = random.Random(seed)
    came: list[tuple[str, Answer]] = []
    with server_process(*FLAGS, *disk_flags(folder)) as server:

        def ask_one(prompt: str) -> None:
            try:
                came.append((prompt, ask(server, prompt)))
            except httpx.HTTPError:
                pass  # it was killed

        prompts = chance.sample(PROMPTS, len(PROMPTS))
        threads = [threading.Thread(target=ask_one, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        time.sleep(chance.random() * MAX_LIFE_S)
        engine = server.engine_process()
        server.process.kill()
        engine.kill()
        for thread in threads:
            thread.join()
    wrong = sum(answer.text != expected[prompt] for prompt, answer in came)
    return Outcome(len(came), wrong, 0)


def run_warm(folder: Path, expected: Mapping[str, str]) -> Outcome:
    """Ask for all once more, of a server that goes on."""
    with server_process(*FLAGS, *disk_flags(folder)) as server:
        answers = {prompt: ask(server, prompt) for prompt in PROMPTS}
        loaded = server.metric("quire:prefix_disk_loaded_tokens_total")
        assert server.metric('quire:prefix_disk_blocks_total{event="corrupt"}') == 0
    wrong = sum(answer.text != expected[prompt] for prompt, answer in answers.items())
    return Outcome(len(answers), wrong, int(loaded))


def check(num_kills: int, seed: int) -> list[Outcome]:
    """Kill so often, then start once more."""
    expected = undisturbed()
    with tempfile.TemporaryDirectory() as folder:
        killed = [run_killed(Path(folder), expected, seed + each) for each in range(num_kills)]
        return [*killed, run_warm(Path(folder), expected)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began_s = time.monotonic()
    outcomes = check(given.kills, given.seed)
    num_texts, num_wrong = (sum(each[index] for each in outcomes) for index in (0, 1))
    print(
        f"{given.kills} kills in {time.monotonic() - began_s:.0f} s: {num_texts} texts came, "
        f"{num_wrong} of them wrong; the last start loaded {outcomes[-1].num_loaded} tokens"
    )
    assert num_wrong == 0


if __name__ == "__main__":
    main()
