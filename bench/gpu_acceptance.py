"""Turns the first minutes on a GPU into facts: is what Quire computes there right, and how fast?

    python -m bench.gpu_acceptance --stage correctness --budget-s 200 --out DIR
    python -m bench.gpu_acceptance --stage speed --budget-s 280 --out DIR
    python -m bench.gpu_acceptance --rehearse --out DIR

Each check is a process of its own with a time limit. A first line says for which checks there will
be no time. Findings are JSON lines, DIR/STAGE.jsonl, written as they come, and a table of them,
DIR/STAGE.md, is printed last. What passed with the same code on the same kind of machine is not run
again, also where `--after` names the folder of an earlier run on a machine that is gone (`--again`
runs all). Nothing is fetched: `python3 -m bench.gpu.bare` brings what a machine without a network
lacks, and runs both stages. A rehearsal runs every check small on a CPU, with Triton's interpreter
and stand-ins.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.gpu.check import Check, Figure
from bench.gpu.listed import STAGES
from bench.gpu.log import End, Log, Status
from bench.gpu.machine import facts_here
from bench.gpu.runner import ROOT, Plan, left_out, run_checks
from bench.machine import read_commit

BUDGET_S = 480.0
FIRST_SHARE = {"correctness": 5 / 12, "speed": 1.0}
"""The share of the time that is left which a stage may take: 200 s of 480, then the other 280."""
MOST_JOBS = 16
"""As many kernels are compiled at once as there are cores; each process takes a GiB of memory."""
IN_MEMORY = Path("/dev/shm")
ROOM_BYTES = 24 << 30
"""The weights of an 8B model are written there where they fit: no disk is waited for."""


def selected(stage: str, names: Sequence[str]) -> list[Check]:
    """Return the named checks of a stage, or all of it if none is named.

    Raises ValueError for a name that no stage has.
    """
    known = {check.name for checks in STAGES.values() for check in checks}
    unknown = sorted(set(names) - known)
    if unknown:
        raise ValueError(
            f"there is no check {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    return [check for check in STAGES[stage] if not names or check.name in names]


def run_stage(stage: str, options: argparse.Namespace, folder: Path, budget_s: float) -> bool:
    """Run what is still to be run of a stage within the budget; print and write its table. Returns
    whether all of it passed."""
    log = Log(options.out / f"{stage}.jsonl")
    facts = facts_here(ROOT, is_rehearsal=options.rehearse)
    checks = selected(stage, options.only)
    left = checks if options.again else _not_passed(checks, stage, options, facts)
    log.add_run({**facts, "commit": read_commit(ROOT)})
    jobs = 1 if stage == "speed" else min(os.cpu_count() or 1, MOST_JOBS)
    device = "cpu" if options.rehearse else "cuda"
    plan = Plan(device, options.rehearse, jobs, budget_s, folder, log)
    print(_outlook(stage, left, plan), flush=True)
    for number, end in enumerate(run_checks(left, plan), 1):
        print(_line(end, number, len(left)), flush=True)
    text = log.table()
    (options.out / f"{stage}.md").write_text(text)
    print(text, flush=True)
    return not _not_passed(checks, stage, options, facts)


def _not_passed(
    checks: Sequence[Check], stage: str, options: argparse.Namespace, facts: Mapping[str, Figure]
) -> list[Check]:
    """Return the checks that have not passed yet, here or in the run that this one goes on from."""
    folders = [options.out] if options.after is None else [options.after, options.out]
    attempts = [Log(folder / f"{stage}.jsonl").attempts(facts) for folder in folders]
    passed = {
        name
        for of_folder in attempts
        for name, attempt in of_folder.items()
        if attempt.end.status is Status.PASSED
    }
    return [check for check in checks if check.name not in passed]


def _outlook(stage: str, checks: Sequence[Check], plan: Plan) -> str:
    missed = [check.name for check in left_out(checks, plan.num_jobs, plan.budget_s)]
    outlook = f"{stage}: {len(checks)} checks in {plan.budget_s:.0f} s, {plan.num_jobs} at once"
    return f"{outlook}; left out, by guess: {', '.join(missed)}" if missed else outlook


def _line(end: End, number: int, total: int) -> str:
    tail = f"\n{end.tail}" if end.tail else ""
    return f"{number}/{total} {end.check}: {end.status} after {end.took_s:.1f} s{tail}"


def main() -> int:
    """Run the stages that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stage", choices=[*STAGES, "all"], default="all")
    parser.add_argument("--out", type=Path, required=True, help="folder for records and tables")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="NAMES")
    parser.add_argument("--again", action="store_true", help="also run what has passed before")
    parser.add_argument("--rehearse", action="store_true", help="small, on a CPU")
    parser.add_argument("--after", type=Path, help="folder of an earlier run to go on from")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="of all stages together")
    options = parser.parse_args()
    try:
        stages = list(STAGES) if options.stage == "all" else [options.stage]
        stages = [stage for stage in stages if selected(stage, options.only)]
    except ValueError as error:
        parser.error(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    ends_s = time.monotonic() + options.budget_s
    results = []
    with tempfile.TemporaryDirectory(dir=_roomy()) as folder:
        for stage in stages:
            left_s = ends_s - time.monotonic()
            budget_s = left_s if len(stages) == 1 else left_s * FIRST_SHARE[stage]
            results.append(run_stage(stage, options, Path(folder), budget_s))
    return 0 if all(results) else 1


def _roomy() -> Path | None:
    """Return a folder in memory where there is room for checkpoints; None is the usual one."""
    has_room = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOM_BYTES
    return IN_MEMORY if has_room else None


if __name__ == "__main__":
    sys.exit(main())
