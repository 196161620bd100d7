"""`quire run-batch` killed at random, again and again, against an undisturbed run:
`python -m tests.e2e.batch_kills --lines 1000 --kills 5`.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.server_process import MODEL, eventually
from tests.server.apis.batches.batch_files import encode, greedy_lines, texts

WITHIN_S = 1200.0
MAX_TOKENS = 24


def start(lines: Path, answers: Path) -> "subprocess.Popen[bytes]":
    flags = ("--dtype", "float32", "--num-threads", "1", "--log-level", "error")
    command = [sys.executable, "-m", "quire.server.cli", "run-batch", str(lines), str(answers)]
    return subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL)


def num_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def run_killed(lines: Path, answers: Path, num_kills: int, draw: random.Random) -> None:
    """Kill as often as said, at moments drawn from the whole of the work, then run to the end."""
    num_lines = len(lines.read_bytes().splitlines())
    per_line = 400
    for moment in sorted(draw.uniform(0, 0.8) for _ in range(num_kills)):
        process = start(lines, answers)
        due = int(moment * num_lines * per_line)
        assert eventually(lambda due=due: num_bytes(answers) > due, WITHIN_S)  # type: ignore[misc]
        process.kill()
        process.wait()
        with answers.open("ab") as file:  # as if it had died within a write
            file.write(b'{"id":"batch_req_00' if draw.random() < 0.5 else b"")
    assert start(lines, answers).wait(WITHIN_S) == 0


def check(num_lines: int, num_kills: int, seed: int) -> int:
    """Return how many answers are those of an undisturbed run. Raises AssertionError where one is
    missing, comes twice or differs."""
    with tempfile.TemporaryDirectory() as folder:
        lines, calm, killed = (Path(folder) / name for name in ("in", "calm", "killed"))
        lines.write_bytes(encode(greedy_lines(MODEL, num_lines, MAX_TOKENS)))
        assert start(lines, calm).wait(WITHIN_S) == 0
        run_killed(lines, killed, num_kills, random.Random(seed))
        undisturbed, disturbed = texts(calm), texts(killed)
        assert len(undisturbed) == num_lines
        assert disturbed == undisturbed
        return len(disturbed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began_s = time.monotonic()
    num_same = check(given.lines, given.kills, given.seed)
    took_s = time.monotonic() - began_s
    print(
        f"{num_same} answers after {given.kills} kills in {took_s:.0f} s: each once, each as "
        "undisturbed"
    )


if __name__ == "__main__":
    main()
