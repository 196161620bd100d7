"""The scheduler's own time in a step: schedule, update and usage, with results out of thin air.

    python -m bench.scheduler_cost [--running 1024] [--waiting 100,10000] [--steps 100]

Prints medians in milliseconds of processor time, by policy and length of the waiting line. On the
scheduler's clock a step takes STEP_S seconds.
"""

import argparse
import time
from statistics import median, quantiles

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.policy import PolicyName
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Step, StepResult

BLOCK_SIZE = 16
NUM_PROMPT_TOKENS = 32
NUM_TENANTS = 64
MAX_TOKENS = 1024
STEP_S = 0.075


def build(policy: PolicyName, num_running: int, num_waiting: int) -> Scheduler:
    max_model_len = NUM_PROMPT_TOKENS + MAX_TOKENS
    config = SchedulerConfig(
        max_num_seqs=num_running,
        max_num_batched_tokens=num_running * NUM_PROMPT_TOKENS,
        max_model_len=max_model_len,
        max_num_queued_reqs=num_waiting,
        scheduling_policy=policy,
    )
    num_blocks = num_running * -(-max_model_len // BLOCK_SIZE) + 1
    return Scheduler(config, KVCache(CacheConfig(num_blocks, BLOCK_SIZE)))


def submit(scheduler: Scheduler, first: int, num: int) -> None:
    for index in range(first, first + num):
        prompt = tuple(index * 31 + place for place in range(NUM_PROMPT_TOKENS))
        tenant, priority = f"t{index % NUM_TENANTS}", index % 7
        new = NewRequest(
            f"r{index}",
            prompt,
            Sampling(),
            Stopping(MAX_TOKENS),
            tenant=tenant,
            priority=priority,
            time_limit_s=1e6,
        )
        if (refusal := scheduler.add(new, index * 1e-3)) is not None:
            raise RuntimeError(refusal.message)


def draw(step: Step) -> StepResult:
    return StepResult(step.number, (7,) * sum(chunk.samples for chunk in step.chunks))


def measure(policy: PolicyName, num_running: int, num_waiting: int, num_steps: int) -> list[float]:
    """Milliseconds of every step in which all decode and one, the oldest, is replaced."""
    scheduler = build(policy, num_running, num_waiting)
    submit(scheduler, 0, num_running)
    step = scheduler.schedule(1e3)
    scheduler.update(step, draw(step), 1e3)
    submit(scheduler, num_running, num_waiting)
    taken = []
    for number in range(num_steps):
        began_s = 1e3 + number * STEP_S
        ended_s = began_s + 0.9 * STEP_S
        began = time.process_time()
        scheduler.abort(f"r{number}", began_s)
        step = scheduler.schedule(began_s)
        between = time.process_time()
        result = draw(step)
        resumed = time.process_time()
        scheduler.update(step, result, ended_s)
        scheduler.usage.take(ended_s)
        taken.append(1e3 * (time.process_time() - resumed + between - began))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, default=1024, help="requests in each step")
    parser.add_argument("--waiting", default="100,10000", help="lengths of the line")
    parser.add_argument("--steps", type=int, default=100, help="decode steps")
    args = parser.parse_args()
    print(f"{args.running} running, {args.steps} steps, schedule and update; ms: median (p95)")
    for policy in PolicyName:
        cells = []
        for num_waiting in map(int, args.waiting.split(",")):
            times = measure(policy, args.running, num_waiting, args.steps)
            p95 = quantiles(times, n=20)[-1]
            cells.append(f"{num_waiting} waiting {median(times):.2f} ({p95:.2f})")
        print(f"  {policy:10} {'  '.join(cells)}")


if __name__ == "__main__":
    main()
