"""Measures the prefix cache on disk, in one process without a server.

    python -m bench.prefix_disk MODEL [--tokens 4000] [--dir FOLDER]

Prints the speed of the two paths between blocks and files beside that of plain copies of as many
bytes, from page cache to page cache, the best of several turns; and how much sooner an engine that
was started again has the first token of a long prompt.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch

from bench.in_process import build_quietly
from quire.cache.persistence.block_file import BlockIdentity
from quire.cache.persistence.store import BlockStore
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.persistence.block_port import row_views
from quire.engine.persistence.loading import NUM_THREADS
from quire.models.block_rows import BlockRows
from quire.models.config import ModelDtype
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.loader import load_model
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import Delta

BLOCK_SIZE = 16
NUM_TURNS = 7
MAX_BYTES = 8 << 30
LAST_TOKENS = 32
FINGERPRINT = bytes(32)


class Seconds(NamedTuple):
    """The seconds of a clock, and those of the processor: these are the truer ones where others
    use the machine too."""

    wall: float
    cpu: float


class Speeds(NamedTuple):
    """The bytes of a prefix, and the seconds of each way with them."""

    num_bytes: int
    copy: Seconds
    copy_files: Seconds
    write: Seconds
    hit: Seconds


class FirstToken(NamedTuple):
    """The seconds to the first token, the tokens that were found, and the seconds until they were
    loaded."""

    seconds: float
    num_cached: int
    loaded_s: float


def best(work: Callable[[], object], clean: Callable[[], object]) -> Seconds:
    """Return the least seconds of several turns; each is cleaned up after."""
    turns = []
    for _ in range(NUM_TURNS):
        began, cpu_began = time.perf_counter(), time.process_time()
        work()
        turns.append((time.perf_counter() - began, time.process_time() - cpu_began))
        clean()
    return Seconds(*map(min, zip(*turns, strict=True)))


def identities(num_blocks: int) -> list[BlockIdentity]:
    keys = [sha256(str(number).encode()).digest() for number in range(num_blocks)]
    return [BlockIdentity(key, key, bytes(4 * BLOCK_SIZE), key) for key in keys]


def batches(num_blocks: int, size: int) -> list[list[int]]:
    return [
        list(range(first, min(first + size, num_blocks))) for first in range(0, num_blocks, size)
    ]


def write(rows: BlockRows, store: BlockStore, blocks: Sequence[BlockIdentity]) -> None:
    """Copy blocks out of KV memory and write them, as the engine and its writer do."""
    for ids in batches(len(blocks), rows.max_rows):
        held = rows.new_rows(len(ids))
        rows.read(ids, held)
        for number, row in zip(ids, row_views(held, len(ids)), strict=True):
            assert store.put(blocks[number], row, store.epoch)


def read(rows: BlockRows, store: BlockStore, blocks: Sequence[BlockIdentity]) -> None:
    """Read blocks in threads, and copy them into KV memory, as the engine does."""

    def read_part(ids: list[int]) -> torch.Tensor:
        held = rows.new_rows(len(ids))
        for number, row in zip(ids, row_views(held, len(ids)), strict=True):
            assert store.get(blocks[number], row)
        return held

    parts = batches(len(blocks), rows.max_rows)
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        for ids, held in zip(parts, threads.map(read_part, parts), strict=True):
            rows.write(held, ids)


def measure_paths(model: Path, num_tokens: int, folder: Path) -> Speeds:
    """Return the speeds of both paths and of plain copies."""
    loaded = load_model(
        ModelSource(str(model)),
        dtype=ModelDtype.AUTO,
        device=torch.device("cpu"),
        on_progress=lambda *_: None,
    )
    num_blocks = num_tokens // BLOCK_SIZE
    attached = loaded.attach(num_blocks, BLOCK_SIZE)
    for tensor in attached.store.tensors:
        tensor.view(torch.uint8).random_(0, 100)
    rows, store = attached.block_rows(), BlockStore(folder / "kv", FINGERPRINT, MAX_BYTES)
    (folder / "kv").mkdir()
    blocks, num_bytes = identities(num_blocks), num_blocks * rows.row_bytes
    source, target = folder / "source", folder / "target"
    source.write_bytes(bytes(num_bytes))
    copy = best(lambda: shutil.copyfile(source, target), target.unlink)
    wrote = best(lambda: write(rows, store, blocks), lambda: empty(folder / "kv", store))
    write(rows, store, blocks)
    hit = best(lambda: read(rows, store, blocks), lambda: None)
    files = sorted(path for path in (folder / "kv").rglob("*") if path.is_file())
    (folder / "copied").mkdir()

    def copy_files() -> None:
        for path in files:
            shutil.copyfile(path, folder / "copied" / path.name)

    copied = best(copy_files, lambda: empty(folder / "copied", store))
    return Speeds(num_bytes, copy, copied, wrote, hit)


def empty(folder: Path, store: BlockStore) -> None:
    """Delete the files in a folder, not the folders: a cache that is in use has these."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()
    store.rescan()


def first_token(config: EngineConfig, num_tokens: int) -> FirstToken:
    """Start an engine and ask for a long prompt, whose last tokens are others each time."""
    engine, _ = build_quietly(config)
    tail = time.monotonic_ns()
    prompt = [number * 31 % 5000 for number in range(num_tokens)]
    prompt += [(tail + number) % 5000 for number in range(LAST_TOKENS)]
    new = NewRequest("a", tuple(prompt), Sampling(temperature=0.0), Stopping(1))
    began = time.perf_counter()
    assert engine.submit(new) is None
    deltas: list[Delta] = []
    while not deltas:
        deltas = engine.step().deltas
    seconds = time.perf_counter() - began
    finish = deltas[-1].finish
    assert finish is not None
    queued_s = finish.timeline[0].time_s
    loaded = [each.time_s - queued_s for each in finish.timeline if "loaded" in each.reason]
    while engine.has_work:
        engine.step()
    engine.close()
    return FirstToken(seconds, finish.num_cached_tokens, max(loaded, default=0.0))


def measure_restart(model: Path, num_tokens: int, folder: Path) -> tuple[FirstToken, FirstToken]:
    """Return the first tokens of a cold and of a warm engine."""
    config = EngineConfig(
        ModelConfig(str(model), device="cpu"),
        MemoryConfig(
            block_size=BLOCK_SIZE,
            kv_cache_tokens=2 * num_tokens,
            prefix_cache_dir=str(folder / "engine"),
            prefix_cache_bytes=MAX_BYTES,
        ),
        SchedulingConfig(max_model_len=num_tokens + 2 * LAST_TOKENS),
    )
    return first_token(config, num_tokens), first_token(config, num_tokens)


def told(speeds: Speeds) -> str:
    """Return the speeds in words."""

    def line(what: str, seconds: Seconds) -> str:
        wall, cpu = (speeds.num_bytes / each / 1e9 for each in seconds)
        one, many = (100 * base.cpu / seconds.cpu for base in (speeds.copy, speeds.copy_files))
        return f"{what:28}{wall:6.2f}{cpu:8.2f}{one:7.0f} %{many:6.0f} %"

    return "\n".join(
        (
            f"{speeds.num_bytes / 1e6:.0f} MB; GB/s by the clock, by processor seconds, and these",
            "beside those of a copy of one file and of a file for each block",
            line("copy of one file", speeds.copy),
            line("copy of a file a block", speeds.copy_files),
            line("write path, KV to files", speeds.write),
            line("hit path, files to KV", speeds.hit),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--dir", type=Path, help="on the file system to be measured")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        print(told(measure_paths(given.model, given.tokens, Path(folder))))
        cold, warm = measure_restart(given.model, given.tokens, Path(folder))
    print(
        f"first token of {given.tokens} tokens: cold {cold.seconds:.2f} s, warm {warm.seconds:.3f} "
        f"s ({warm.num_cached} tokens loaded in {warm.loaded_s:.3f} s): "
        f"{cold.seconds / warm.seconds:.0f} times as soon"
    )


if __name__ == "__main__":
    main()
