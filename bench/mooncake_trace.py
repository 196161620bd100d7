"""Prefix hits on real conversations, against what their own block hashes say.

    python -m bench.mooncake_trace --trace mooncake_conversation_trace.jsonl [--requests 12031]

The trace (Mooncake, arXiv 2407.00079) gives each prompt as ids of blocks of 512 tokens: equal ids
mean equal content and equal prefix. Here each id is one block of 16 tokens. The offline replay
walks the ids in order of arrival through an unbounded memory, and through one of as many blocks as
the cache has, least recently used first. The real cache and scheduler run over a device that only
counts (`virtual.py`).
"""

import argparse
import json
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from bench.virtual import Arrival, Device, Replay, replay
from quire.cache.config import CacheConfig
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.request import NewRequest, Sampling, Stopping

BLOCK_SIZE = 16
TRACE_BLOCK_SIZE = 512
SCALE = TRACE_BLOCK_SIZE // BLOCK_SIZE
DEVICE = Device(step_s=1e-3, token_s=2e-6, block_s=1e-5)


class Prompt(NamedTuple):
    """The ids of its full blocks; what is left over is no block of the cache."""

    time_s: float
    hash_ids: tuple[int, ...]
    num_tokens: int
    num_outputs: int


def read_trace(path: Path, num_requests: int) -> list[Prompt]:
    prompts = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            num_full = entry["input_length"] // TRACE_BLOCK_SIZE
            prompts.append(
                Prompt(
                    entry["timestamp"] / 1000,
                    tuple(entry["hash_ids"][:num_full]),
                    num_full * BLOCK_SIZE + 1,
                    max(1, entry["output_length"] // SCALE),
                )
            )
    return prompts[:num_requests]


def arrivals_of(prompts: list[Prompt]) -> list[Arrival]:
    arrivals = []
    for index, prompt in enumerate(prompts):
        words = [
            (hash_id * BLOCK_SIZE + offset) % (1 << 31)
            for hash_id in prompt.hash_ids
            for offset in range(BLOCK_SIZE)
        ]
        new = NewRequest(f"r{index}", (*words, index), Sampling(), Stopping(prompt.num_outputs))
        arrivals.append(Arrival(prompt.time_s, new))
    return arrivals


def offline_hit_rate(prompts: list[Prompt], num_blocks: int | None) -> float:
    """Return the share of all prompt tokens that lie in leading blocks that were there. With
    `num_blocks` None there is no bound."""
    kept: OrderedDict[int, None] = OrderedDict()
    num_hits = num_tokens = 0
    for prompt in prompts:
        leading = 0
        for hash_id in prompt.hash_ids:
            if hash_id not in kept:
                break
            leading += 1
        num_hits += leading * BLOCK_SIZE
        num_tokens += prompt.num_tokens
        for hash_id in reversed(prompt.hash_ids):
            kept[hash_id] = None
            kept.move_to_end(hash_id)
        while num_blocks is not None and len(kept) > num_blocks:
            kept.popitem(last=False)
    return num_hits / num_tokens


def run(prompts: list[Prompt], num_blocks: int) -> Replay:
    longest = max(prompt.num_tokens + prompt.num_outputs for prompt in prompts)
    config = SchedulerConfig(
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=longest,
        max_num_queued_reqs=len(prompts),
    )
    return replay(arrivals_of(prompts), config, CacheConfig(num_blocks, BLOCK_SIZE), DEVICE)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mooncake_trace", description=__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=12_031)
    args = parser.parse_args()
    prompts = read_trace(args.trace, args.requests)
    num_distinct = len({hash_id for prompt in prompts for hash_id in prompt.hash_ids})
    for share in (2.0, 0.25):
        num_blocks = int(share * num_distinct)
        found = run(prompts, num_blocks)
        rate = found.stats.num_prefix_hits / found.stats.num_prefix_queries
        offline = offline_hit_rate(prompts, None if share > 1 else num_blocks)
        print(
            f"\n{num_blocks} blocks ({share:g} of the {num_distinct} distinct): {len(found.ended)} "
            f"answered, hit rate {rate:.4f}, offline {offline:.4f}, "
            f"difference {abs(rate - offline):.4f}"
        )


if __name__ == "__main__":
    main()
