"""Kills processes that write to a store, at random moments, and reads what they leave.

    python -m tests.storage.disk.kills FOLDER 2000

Two writers share the folder, so that a kill also hits one while another goes on. They write extents
of several blocks, read them and erase some. Fails if a block is read whose bytes are not those that
were put, or if a start fails.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from quire.storage.disk.store import BlockStore
from tests.storage.disk.blocks import FINGERPRINT, files_of, identity, row

NUM_WRITERS = 2
NUM_BLOCKS = 256
ROW_BYTES = 200_000
MAX_BYTES = 60 * ROW_BYTES
MAX_RUN = 8
MAX_LIFE_S = 0.02


def write_for_ever(folder: Path, seed: int) -> None:
    """Put and erase random blocks until killed."""
    chance = random.Random(seed)
    store = BlockStore(folder, FINGERPRINT, MAX_BYTES)
    store.rescan()
    while True:
        first = chance.randrange(NUM_BLOCKS)
        numbers = range(first, min(first + chance.randrange(1, MAX_RUN), NUM_BLOCKS))
        identities = [identity(number) for number in numbers]
        rows = [memoryview(row(number, ROW_BYTES)) for number in numbers]
        if not store.put(identities, rows, store.epoch):
            os._exit(1)
        if chance.random() < 0.1:
            store.drop([identity(chance.randrange(NUM_BLOCKS)).key])
        if chance.random() < 0.05:
            store.rescan()


def begin(folder: Path, seed: int) -> int:
    """Start a writer, and return its id."""
    process_id = os.fork()
    if process_id == 0:
        try:
            write_for_ever(folder, seed)
        finally:
            os._exit(1)
    return process_id


def check(folder: Path) -> tuple[int, int]:
    """Read all blocks as a new engine would; return how many are whole, and how many wrong."""
    store = BlockStore(folder, FINGERPRINT, MAX_BYTES)
    store.rescan()
    num_whole = num_wrong = 0
    for number in range(NUM_BLOCKS):
        found = bytearray(ROW_BYTES)
        if store.get([identity(number)], [memoryview(found)]):
            num_whole += 1
            num_wrong += found != row(number, ROW_BYTES)
    return num_whole, num_wrong + store.stats.num_corrupt


def clean(folder: Path) -> int:
    """Let what was half written be old, and return how much of it a scan leaves."""
    for path in folder.glob("*/*/.*.tmp"):
        os.utime(path, (0, 0))
    BlockStore(folder, FINGERPRINT, MAX_BYTES).rescan()
    return len(list(folder.glob("*/*/.*.tmp")))


def main() -> None:
    """Kill as often as is asked for."""
    folder, num_kills = Path(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(num_kills)
    num_whole = num_wrong = num_torn = num_died = 0
    writers = [begin(folder, seed) for seed in range(NUM_WRITERS)]
    for number in range(num_kills):
        time.sleep(chance.random() * MAX_LIFE_S)
        victim = number % NUM_WRITERS
        os.kill(writers[victim], signal.SIGKILL)
        _, status = os.waitpid(writers[victim], 0)
        num_died += not os.WIFSIGNALED(status)
        if number % 10 == 0:
            whole, wrong = check(folder)
            num_whole, num_wrong = num_whole + whole, num_wrong + wrong
            num_torn += len(list(folder.glob("*/*/.*.tmp")))
        writers[victim] = begin(folder, number + NUM_WRITERS)
    for process_id in writers:
        os.kill(process_id, signal.SIGKILL)
        os.waitpid(process_id, 0)
    whole, wrong = check(folder)
    num_whole, num_wrong = num_whole + whole, num_wrong + wrong + clean(folder)
    held = sum(path.stat().st_size for path in files_of(folder))
    assert held <= MAX_BYTES
    print(f"kills={num_kills} whole={num_whole} wrong={num_wrong} torn={num_torn} died={num_died}")
    sys.exit(bool(num_wrong or num_died))


if __name__ == "__main__":
    main()
