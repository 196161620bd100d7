"""Compare one engine with two in one box and with two replicas on Ray Serve, under prompts that
share beginnings.

    python -m bench.replicas [--model MODEL] [--groups 16] [--turns 8] [--ways one,engines]

Each group of requests shares a prefix of 256 tokens; 8 clients send them in random order. Printed
are the share of prompt tokens that the prefix caches had, the median time to the first token, and
requests a second: of one engine (`one`), of two behind one server (`engines`), and of replicas that
are chosen by prefix (`prefix`) and by load alone (`load`), which want the extra `ray`.
"""

import argparse
import json
import random
import re
import statistics
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import NamedTuple

from quire.workbench.bench.processes import own_server

NUM_CLIENTS = 8
PREFIX_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 256, 32, 8
VOCABULARY = range(100, 400)
WAYS = {
    "one": ("one engine", ()),
    "engines": ("2 engines in one box", ("--data-parallel-size", "2")),
    "prefix": ("2 replicas, by prefix", ("--replicas", "2")),
    "load": ("2 replicas, by load", ("--replicas", "2", "--replica-routing", "load")),
}
OF_RAY = ("prefix", "load")


class Result(NamedTuple):
    """The results of one way to serve."""

    hit_rate: float
    median_ttft_s: float
    requests_per_s: float


def prompts(num_groups: int, num_turns: int, seed: int = 1) -> list[list[int]]:
    """Return the prompts in token ids, in the order in which they are sent."""
    chance = random.Random(seed)

    def tokens(num: int) -> list[int]:
        return chance.choices(VOCABULARY, k=num)

    prefixes = [tokens(PREFIX_TOKENS) for _ in range(num_groups)]
    made = [prefix + tokens(OWN_TOKENS) for prefix in prefixes for _ in range(num_turns)]
    chance.shuffle(made)
    return made


def first_token_s(url: str, prompt: list[int]) -> float:
    """Send a prompt, read the whole stream, and return the seconds until its first event."""
    body = {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "stream": True, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began_s = time.monotonic()
    first_s = None
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            if first_s is None and line.startswith(b"data:"):
                first_s = time.monotonic() - began_s
    assert first_s is not None
    return first_s


def counted(url: str, name: str) -> float:
    """Return the sum of a metric over all engines."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        text = reply.read().decode()
    found = re.findall(rf"^quire:{name}{{.*}} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def measure(flags: Sequence[str], sent: list[list[int]]) -> Result:
    """Serve so, send the prompts, and return what came of it."""
    with own_server(["--port", "0", "--num-threads", "1", *flags]) as server:
        for warm in range(4):
            first_token_s(server.url, [50 + warm] * 40)
        before = [counted(server.url, f"prefix_cache_{each}_total") for each in ("hits", "queries")]
        began_s = time.monotonic()
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            times = list(clients.map(lambda prompt: first_token_s(server.url, prompt), sent))
        took_s = time.monotonic() - began_s
        after = [counted(server.url, f"prefix_cache_{each}_total") for each in ("hits", "queries")]
    hits, queries = (now - past for now, past in zip(after, before, strict=True))
    return Result(hits / queries, statistics.median(times), len(sent) / took_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare one engine with several.")
    known = [each for each in WAYS if each not in OF_RAY or find_spec("ray")]
    parser.add_argument("--model", default="bundled", help="MODEL [bundled]")
    parser.add_argument("--groups", type=int, default=16, help="prefixes [16]")
    parser.add_argument("--turns", type=int, default=8, help="requests with each prefix [8]")
    parser.add_argument("--ways", default=",".join(known), help="those to measure [%(default)s]")
    options = parser.parse_args()
    sent = prompts(options.groups, options.turns)
    print("| | hit rate | median TTFT | requests/s |\n|---|---|---|---|")
    for name, flags in (WAYS[each] for each in options.ways.split(",")):
        result = measure((options.model, *flags), sent)
        print(
            f"| {name} | {result.hit_rate:.3f} | {1000 * result.median_ttft_s:.1f} ms "
            f"| {result.requests_per_s:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
