"""Turns the first minutes on a GPU into facts: is what Quire computes there right, and how fast?

    python -m bench.gpu_acceptance --stage correctness --out DIR
    python -m bench.gpu_acceptance --stage speed --out DIR
    python -m bench.gpu_acceptance --rehearse --out DIR

Each check is a process of its own with a time limit. Findings are JSON lines, DIR/STAGE.jsonl, and
a table of them, DIR/STAGE.md, is printed last. What passed at the same commit on the same machine
is not run again, so that a call that was cut short goes on (`--again` runs all). Nothing is
fetched: what a machine without a network lacks is brought by `make gpu-wheels`. A rehearsal runs
every check small on a CPU, with Triton's interpreter and stand-ins.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.check import Check
from bench.gpu.listed import STAGES
from bench.gpu.log import End, Log, Status
from bench.gpu.machine import facts_here
from bench.gpu.runner import ROOT, Plan, run_checks

BUDGET_S = 440.0
JOBS = {"correctness": 4, "speed": 1}
REHEARSAL_JOBS = 2


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


def run_stage(stage: str, options: argparse.Namespace, folder: Path) -> bool:
    """Run what is still to be run of a stage; print and write its table. Returns whether all of it
    passed."""
    log = Log(options.out / f"{stage}.jsonl")
    facts = facts_here(ROOT, is_rehearsal=options.rehearse)
    checks = selected(stage, options.only)
    done = {} if options.again else log.attempts(facts)
    left = [c for c in checks if c.name not in done or done[c.name].end.status != Status.PASSED]
    log.add_run(facts)
    jobs = REHEARSAL_JOBS if options.rehearse and stage == "correctness" else JOBS[stage]
    device = "cpu" if options.rehearse else "cuda"
    plan = Plan(device, options.rehearse, jobs, options.budget_s, folder, log)
    for number, end in enumerate(run_checks(left, plan), 1):
        print(_line(end, number, len(left)), flush=True)
    text = log.table()
    (options.out / f"{stage}.md").write_text(text)
    print(text, flush=True)
    attempts = log.attempts(facts)
    return all(attempts[check.name].end.status is Status.PASSED for check in checks)


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
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="of each stage")
    options = parser.parse_args()
    try:
        stages = list(STAGES) if options.stage == "all" else [options.stage]
        stages = [stage for stage in stages if selected(stage, options.only)]
    except ValueError as error:
        parser.error(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        results = [run_stage(stage, options, Path(folder)) for stage in stages]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
