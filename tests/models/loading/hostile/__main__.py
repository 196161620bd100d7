"""Puts many changed files to the loader, and prints what came of them.

    python -m tests.models.loading.hostile [--kind gguf|folder] [--number 2000] [--first 0]

A process loads them one after the other. Where it crashes, or takes too long for a file, the change
is told and another process goes on behind it.
"""

import argparse
import collections
import logging
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from huggingface_hub import constants

from tests.models.loading.hostile.models import KINDS, Originals

MAX_SECONDS = 30


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models.loading.hostile")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return _child(Originals(Path(given.child)), given.kind, given.first, given.number)
    for kind in [given.kind] if given.kind else KINDS:
        with tempfile.TemporaryDirectory() as folder:
            _attack(kind, given.first, given.number, Path(folder))
    return None


def _attack(kind: str, first: int, number: int, folder: Path) -> None:
    counts: collections.Counter[str] = collections.Counter()
    faults = []
    Originals(folder).write()
    seed, end = first, first + number
    while seed < end:
        command = [sys.executable, "-m", "tests.models.loading.hostile", "--child", str(folder)]
        command += ["--kind", kind, "--first", str(seed), "--number", str(end - seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                told, verdict, text = line.rstrip("\n").split("\t", 2)
                seed = int(told) + 1
                counts[verdict] += 1
                if verdict == "fault":
                    faults.append(f"{kind} {told}: {text}")
                    print(faults[-1], flush=True)
        if seed < end:
            faults.append(f"{kind} {seed}: the process ended with {child.returncode}")
            print(faults[-1], flush=True)
            seed += 1
    print(f"{kind}: {dict(counts)}, {len(faults)} faults of {number:,} changes")


def _child(originals: Originals, kind: str, first: int, number: int) -> None:
    from tests.models.loading.hostile.outcome import MAX_BYTES, opened_outside

    constants.HF_HOME = str(originals.folder / "hf")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
    originals.attack(kind, first)  # the first brings what is loaded once
    outside = opened_outside()
    for seed in range(first, first + number):
        signal.alarm(20 * MAX_SECONDS)
        name = "?"
        try:
            name, outcome = originals.attack(kind, seed)
            fault = outcome.fault(max_seconds=MAX_SECONDS, max_bytes=MAX_BYTES)
            verdict, text = ("fault", fault) if fault else ("loaded", "")
            if outcome.refusal is not None and not fault:
                verdict, text = "refused", outcome.refusal
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            verdict = "fault"
            text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        if outside:
            verdict, text = "fault", f"it read {outside.pop()}"
            outside.clear()
        print(seed, verdict, f"{name}: {' '.join(text.split())[:600]}", sep="\t", flush=True)


if __name__ == "__main__":
    main()
