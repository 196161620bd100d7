"""The engine's own time in a step: all but the model's forward, with the toy model.

    python -m bench.engine_overhead [--running 64] [--steps 300]

Prints medians in milliseconds of schedule, run without the forward (batch, sampler) and update.
"""

import argparse
import time
from collections.abc import Collection, Sequence
from statistics import median, quantiles

from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.engine.runner import Runner, RunnerConfig
from quire.models.batch import Batch, StepRows
from quire.models.config import KVSize
from quire.models.toy import ToyModel
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
NUM_PROMPT_TOKENS = 128
VOCAB_SIZE = 1024


class TimedModel:
    """The toy model, with the seconds of its last forward."""

    def __init__(self, model: ToyModel) -> None:
        self._model = model
        self.forward_s = 0.0

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        self._model.copy_blocks(copies, new_blocks)

    def take_copy_time(self) -> CopyTime:
        return self._model.take_copy_time()

    def forward(self, batch: Batch) -> Tensor:
        began = time.perf_counter()
        logits = self._model.forward(batch)
        self.forward_s = time.perf_counter() - began
        return logits

    def forward_with_states(self, batch: Batch) -> StepRows:
        return self._model.forward_with_states(batch)


def build(num_running: int, num_steps: int) -> tuple[Scheduler, Runner, TimedModel]:
    max_model_len = NUM_PROMPT_TOKENS + num_steps + 1
    num_blocks = num_running * -(-max_model_len // BLOCK_SIZE) + 1
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=num_running,
            max_num_batched_tokens=num_running * NUM_PROMPT_TOKENS,
            max_model_len=max_model_len,
            max_num_queued_reqs=num_running,
            watermark=0.0,
        ),
        KVCache(CacheConfig(num_blocks, BLOCK_SIZE)),
    )
    model = TimedModel(ToyModel(VOCAB_SIZE, KVSize(num_blocks, BLOCK_SIZE)))
    max_num_blocks = -(-max_model_len // BLOCK_SIZE)
    runner = Runner(RunnerConfig(num_running, max_num_blocks, BLOCK_SIZE, "cpu"), model)
    return scheduler, runner, model


def submit(scheduler: Scheduler, num_running: int, num_steps: int, temperature: float) -> None:
    for index in range(num_running):
        prompt = tuple((index * 31 + place) % VOCAB_SIZE for place in range(NUM_PROMPT_TOKENS))
        sampling = Sampling(temperature=temperature, seed=index)
        scheduler.add(NewRequest(f"r{index}", prompt, sampling, Stopping(num_steps)), 0.0)


def measure(num_running: int, num_steps: int, temperature: float) -> dict[str, list[float]]:
    """Milliseconds of every decode step, by part."""
    scheduler, runner, model = build(num_running, num_steps)
    submit(scheduler, num_running, num_steps, temperature)
    parts: dict[str, list[float]] = {"schedule": [], "run": [], "update": [], "overhead": []}
    while scheduler.has_work:
        stamps = [time.perf_counter()]
        step = scheduler.schedule(stamps[0])
        stamps.append(time.perf_counter())
        result = runner.run(step)
        stamps.append(time.perf_counter())
        scheduler.update(step, result, stamps[-1])
        stamps.append(time.perf_counter())
        if step.new_requests or len(step.chunks) < num_running:
            continue
        parts["schedule"].append(1e3 * (stamps[1] - stamps[0]))
        parts["run"].append(1e3 * (stamps[2] - stamps[1] - model.forward_s))
        parts["update"].append(1e3 * (stamps[3] - stamps[2]))
        parts["overhead"].append(1e3 * (stamps[3] - stamps[0] - model.forward_s))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, default=64, help="requests in each step")
    parser.add_argument("--steps", type=int, default=300, help="decode steps")
    args = parser.parse_args()
    print(f"{args.running} running, {args.steps} decode steps, toy model; ms: median (p95)")
    for name, temperature in (("greedy", 0.0), ("temperature 1", 1.0)):
        parts = measure(args.running, args.steps, temperature)
        cells = [
            f"{part} {median(times):.2f} ({quantiles(times, n=20)[-1]:.2f})"
            for part, times in parts.items()
        ]
        print(f"  {name:14} {'  '.join(cells)}")


if __name__ == "__main__":
    main()
