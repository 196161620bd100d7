"""A burst of equal prompts of which nothing is cached: with waiting for a prefix, and without.

    python -m bench.prefix_burst --model DIR [--requests 32] [--prompt-tokens 2000]
        [--own-tokens 0] [--rounds 3] [--max-num-batched-tokens 512,2048,8192] [--num-threads N]
        [--cpu-time]

In process, without a server, both in turn. The last `--own-tokens` of each prompt differ. Prints
medians over rounds, each with prompts of its own, after one untimed: tokens computed, time to first
token (p50 and p99 over requests), time of it all. With `--cpu-time` seconds are those of this
process' threads, which others on the machine disturb less.
"""

import argparse
import random
import time
from statistics import median, quantiles
from typing import NamedTuple

from bench.in_process import build_quietly
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.scheduler.request import NewRequest, Sampling, Stopping

NUM_OUTPUT_TOKENS = 4
MAX_TOKEN_ID = 30_000


class Burst(NamedTuple):
    """The figures of one round; seconds from the moment the requests were handed over."""

    num_computed: int
    ttft_p50_s: float
    ttft_p99_s: float
    total_s: float


def run(engine: Engine, args: argparse.Namespace, seed: int) -> Burst:
    """Hand over all requests of one prompt, and step until they have ended."""
    drawn = random.Random(seed)
    clock = time.process_time if args.cpu_time else time.perf_counter
    num_equal = args.prompt_tokens - args.own_tokens
    equal = tuple(drawn.randrange(10, MAX_TOKEN_ID) for _ in range(num_equal))
    began, num_computed = clock(), 0
    for index in range(args.requests):
        own = tuple(drawn.randrange(10, MAX_TOKEN_ID) for _ in range(args.own_tokens))
        sampling = Sampling(temperature=0.0)
        new = NewRequest(f"{seed}-{index}", equal + own, sampling, Stopping(NUM_OUTPUT_TOKENS))
        if (refusal := engine.submit(new)) is not None:
            raise RuntimeError(refusal.message)
    firsts_s: dict[str, float] = {}
    while engine.has_work:
        output = engine.step()
        num_computed += output.num_tokens
        for delta in output.deltas:
            firsts_s.setdefault(delta.request_id, clock() - began)
    total_s = clock() - began
    cuts = quantiles(firsts_s.values(), n=100, method="inclusive")
    return Burst(num_computed, cuts[49], cuts[98], total_s)


def measure(args: argparse.Namespace, num_batched: int) -> None:
    """Both settings in turn, each round in the other order."""
    engines = {
        waits: build_quietly(
            EngineConfig(
                ModelConfig(args.model, num_threads=args.num_threads),
                memory=MemoryConfig(
                    kv_cache_tokens=2 * args.prompt_tokens
                    + 64 * args.requests * NUM_OUTPUT_TOKENS
                    + args.kv_prompts * args.prompt_tokens
                ),
                scheduling=SchedulingConfig(
                    max_model_len=args.prompt_tokens + NUM_OUTPUT_TOKENS,
                    max_num_batched_tokens=num_batched,
                    wait_for_prefix=waits,
                ),
            )
        )[0]
        for waits in (True, False)
    }
    bursts: dict[bool, list[Burst]] = {True: [], False: []}
    for number in range(args.rounds + 1):
        for waits in (True, False) if number % 2 else (False, True):
            burst = run(engines[waits], args, seed=number)
            if number:
                bursts[waits].append(burst)
    for waits, rounds in bursts.items():
        computed, p50, p99, total = (median(each) for each in zip(*rounds, strict=True))
        print(
            f"{num_batched:6} {'waits' if waits else 'alone':6} {computed:7.0f} tokens"
            f"  TTFT p50 {p50:6.2f} p99 {p99:6.2f} s  total {total:6.2f} s",
            flush=True,
        )
    for engine in engines.values():
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--own-tokens", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-prompts", type=int, default=8, help="prompts that KV memory holds")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--max-num-batched-tokens", default="512,2048,8192", help="settings")
    args = parser.parse_args()
    for num_batched in map(int, args.max_num_batched_tokens.split(",")):
        measure(args, num_batched)


if __name__ == "__main__":
    main()
