"""Preemption by swap, by recompute, and by measured cost, on real traffic with half the memory.

    python -m bench.azure_trace --trace azure_llm_2023_conv.csv [--requests 4000] [--outputs 8]

Prompt and output lengths and arrival times are those of the trace (Azure LLM inference trace 2023,
Splitwise, arXiv 2311.18677), lengths divided by eight and time sped up until the device is full.
First a replay with ample blocks tells the working set; the others have half of it. Each link speed
is replayed in all three modes over a device that only counts (`virtual.py`). `--outputs` makes
outputs so many times longer, and preemptions so much more frequent.
"""

import argparse
import csv
import random
from datetime import datetime
from pathlib import Path

from bench.virtual import Arrival, Device, Replay, replay
from quire.cache.config import CacheConfig
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.request import NewRequest, Sampling, Stopping

SCALE = 8
BLOCK_SIZE = 16
MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 64
BUDGET = 512
AMPLE_BLOCKS = 1 << 16
SPEED_UP = 40.0
TOKEN_S, STEP_S = 50e-6, 2e-3
LINKS = {"fast": 5e-6, "even": 400e-6, "slow": 20e-3}
"""Seconds to move a block; computing one's tokens takes 0.8 ms."""


def read_trace(path: Path, num_requests: int, outputs: int) -> list[Arrival]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:num_requests]
    first_s = _seconds(rows[0]["TIMESTAMP"])
    rng = random.Random(0)
    arrivals = []
    for index, row in enumerate(rows):
        num_prompt = max(1, int(row["ContextTokens"]) // SCALE)
        num_output = max(1, outputs * int(row["GeneratedTokens"]) // SCALE)
        prompt = tuple(rng.choices(range(50_000), k=min(num_prompt, MAX_MODEL_LEN - num_output)))
        new = NewRequest(f"r{index}", prompt, Sampling(), Stopping(num_output))
        arrivals.append(Arrival((_seconds(row["TIMESTAMP"]) - first_s) / SPEED_UP, new))
    return arrivals


def _seconds(stamp: str) -> float:
    """The trace has seven decimals, datetime six."""
    return datetime.fromisoformat(stamp[:26]).timestamp()


def run(
    arrivals: list[Arrival], *, num_blocks: int, block_s: float, mode: PreemptionMode
) -> Replay:
    config = SchedulerConfig(
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=BUDGET,
        max_model_len=MAX_MODEL_LEN,
        max_num_queued_reqs=len(arrivals),
        preemption_mode=mode,
    )
    num_host = 0 if mode is PreemptionMode.RECOMPUTE else 4 * num_blocks
    cache = CacheConfig(num_blocks, BLOCK_SIZE, num_host_blocks=num_host)
    return replay(arrivals, config, cache, Device(STEP_S, TOKEN_S, block_s))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.azure_trace", description=__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--outputs", type=int, default=1)
    args = parser.parse_args()
    arrivals = read_trace(args.trace, args.requests, args.outputs)
    ample = run(
        arrivals, num_blocks=AMPLE_BLOCKS, block_s=LINKS["even"], mode=PreemptionMode.RECOMPUTE
    )
    num_blocks = ample.max_active_blocks // 2 + 1
    print(
        f"\nworking set {ample.max_active_blocks} blocks, {ample.goodput:,.0f} tok/s with all of "
        f"them; {num_blocks} from here on"
    )
    for name, block_s in LINKS.items():
        found = {
            mode: run(arrivals, num_blocks=num_blocks, block_s=block_s, mode=mode)
            for mode in PreemptionMode
        }
        print(f"\n{name} link, {block_s * 1e3:g} ms a block")
        for mode, each in found.items():
            print(
                f"  {mode:10} {each.goodput:9,.0f} tok/s   {len(each.ended)} answered   "
                f"{each.stats.num_preemptions} preemptions   "
                f"{each.stats.num_wasted_tokens} tokens again   {each.num_blocks_moved} moves"
            )
        best = max(found[PreemptionMode.SWAP].goodput, found[PreemptionMode.RECOMPUTE].goodput)
        print(f"  auto / better forced mode: {found[PreemptionMode.AUTO].goodput / best:.3f}")


if __name__ == "__main__":
    main()
