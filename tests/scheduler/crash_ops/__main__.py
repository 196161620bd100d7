"""Random operations of scheduler and cache with crashes: `python -m tests.scheduler.crash_ops
--operations 1000000 --seed 0`, or `--seed random`.
"""

import argparse
import random
import time

from tests.scheduler.crash_ops.machine import CrashMachine

REPORT_EVERY = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", default="0", help="a number, or random")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed == "random" else int(options.seed)
    print(f"{options.operations} operations, seed {seed}", flush=True)
    machine, began_s = CrashMachine(seed), time.monotonic()

    def report(number: int) -> None:
        if number % REPORT_EVERY == 0 or number == options.operations:
            done = ", ".join(f"{num} {name}" for name, num in machine.num_done.most_common())
            print(f"{number} in {time.monotonic() - began_s:.0f} s: {done}", flush=True)

    machine.run(options.operations, report)


if __name__ == "__main__":
    main()
