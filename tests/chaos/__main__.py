"""`python -m tests.chaos`: a server whose engine is killed, stopped and crashed in every way, and
what its clients noticed."""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.chaos.report import HEAD, details, is_late, row, where
from tests.chaos.scenarios import SCENARIOS, Scale


def main(argv: Sequence[str]) -> int:
    given = _parser().parse_args(argv)
    seed = random.randrange(1 << 31) if given.seed is None else given.seed
    scale = Scale(
        seed,
        num_requests=given.requests,
        num_hits=given.hits,
        num_stops=given.stops,
        seconds=given.seconds,
        num_clients=given.clients,
        calm_s=given.calm_s,
    )
    print(f"seed {seed}; {where()}", flush=True)
    outcomes = []
    for name in given.scenario or SCENARIOS:
        began_s = time.monotonic()
        for outcome in SCENARIOS[name](scale):
            outcomes.append(outcome)
            print(f"{outcome.name}, after {time.monotonic() - began_s:.0f} s", flush=True)
            print(details(outcome), flush=True)
    print("\n".join(["", HEAD, *map(row, outcomes)]))
    failed = any(outcome.breaches or is_late(outcome) for outcome in outcomes)
    print("FAIL" if failed else "PASS")
    if given.json is not None:
        record = {"where": where(), "scale": asdict(scale), "outcomes": [*map(asdict, outcomes)]}
        given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(SCENARIOS)}; all if not said")
    parser.add_argument("--seed", type=int, help="drawn, and printed, if not said")
    parser.add_argument("--requests", type=int, default=128, help="of a load, half streamed [128]")
    parser.add_argument(
        "--hits", type=int, default=10, help="engines that are killed, and that crash [10]"
    )
    parser.add_argument("--stops", type=int, default=3, help="engines that are stopped [3]")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the storm [120]")
    parser.add_argument("--clients", type=int, default=16, help="of the storm [16]")
    parser.add_argument("--calm-s", type=float, default=2.0, help="between its troubles [2]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
