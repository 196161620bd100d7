"""Measures the prefix cache on disk, in one process without a server.

    python -m bench.prefix_disk MODEL [--tokens 4000] [--dir FOLDER] [--paths]

Prints the speed of the two paths between blocks and files, and of their parts, beside that of plain
copies of as many bytes, as one file and as as many files as the cache makes, from page cache to
page cache, the best of several turns; and how much sooner an engine that was started again has the
first token of a long prompt.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from bench.in_process import build_quietly
from bench.machine import read_machine
from quire.cache.block_hash import BlockHash
from quire.cache.chain import Content
from quire.cache.sharing import NO_KEYS
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.persistence.block_port import row_views
from quire.engine.persistence.loading import MAX_READING_PARTS, NUM_THREADS
from quire.models.block_rows import BlockRows
from quire.models.config import ModelDtype
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.loader import load_model
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import Delta
from quire.storage.disk.block_header import checksum_of, identity_of
from quire.storage.disk.store import BlockStore
from quire.storage.disk.write_behind import UnsavedBlock

BLOCK_SIZE = 16
NUM_TURNS = 7
MAX_BYTES = 8 << 30
LAST_TOKENS = 32
FINGERPRINT = bytes(32)
ONE_FILE, AS_MANY = "copy of one file", "copy of as many files"


class Seconds(NamedTuple):
    """The seconds of a clock, and those of the processor: these are the truer ones where others
    use the machine too."""

    wall: float
    cpu: float


class FirstToken(NamedTuple):
    """The seconds to the first token, the tokens that were found, and the seconds until they were
    loaded."""

    seconds: float
    num_cached: int
    loaded_s: float


class Work(NamedTuple):
    """A piece of work that is measured, and its cleaning up."""

    do: Callable[[], object]
    clean: Callable[[], object] = lambda: None


def best(works: Mapping[str, Work]) -> dict[str, Seconds]:
    """Return the least seconds of each work over several turns. All take turns, so that what others
    do on the machine hits them alike."""
    times: dict[str, list[Seconds]] = {name: [] for name in works}
    for _ in range(NUM_TURNS):
        for name, work in works.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            work.do()
            seconds = Seconds(time.perf_counter() - began, time.process_time() - cpu_began)
            times[name].append(seconds)
            work.clean()
    return {name: Seconds(*map(min, zip(*each, strict=True))) for name, each in times.items()}


def chain_of(num_blocks: int) -> list[UnsavedBlock]:
    """Return blocks that follow one another, without rows."""
    block_hash, chain = BlockHash(root=bytes(32)), None
    blocks: list[UnsavedBlock] = []
    for number in range(num_blocks):
        tokens = number.to_bytes(4, "little") * BLOCK_SIZE
        above = block_hash.root if chain is None else chain.digest
        chain = Content(block_hash.digest(above, tokens, b""), tokens, NO_KEYS, chain)
        identity = identity_of(chain, 0, block_hash.root)
        blocks.append(UnsavedBlock(identity, chain, memoryview(b"")))
    return blocks


def batches(num_blocks: int, size: int) -> list[list[int]]:
    return [
        list(range(first, min(first + size, num_blocks))) for first in range(0, num_blocks, size)
    ]


def gather(rows: BlockRows, ids: Sequence[int]) -> list[memoryview]:
    """Copy blocks out of KV memory."""
    held = rows.new_rows(len(ids))
    rows.read(ids, held)
    return row_views(held, len(ids))


def write(rows: BlockRows, store: BlockStore, blocks: Sequence[UnsavedBlock]) -> None:
    """Copy blocks out of KV memory and write them, as the engine and its writer do."""
    for ids in batches(len(blocks), rows.max_rows):
        identities = [blocks[number].identity for number in ids]
        assert store.put(identities, gather(rows, ids), store.epoch)


def read(rows: BlockRows, store: BlockStore, blocks: Sequence[UnsavedBlock]) -> None:
    """Read blocks in threads, and copy them into KV memory, as the engine does."""

    def read_part(ids: list[int]) -> torch.Tensor:
        held = rows.new_rows(len(ids))
        identities = [blocks[number].identity for number in ids]
        assert store.get(identities, row_views(held, len(ids))) == len(ids)
        return held

    parts = batches(len(blocks), rows.max_rows)
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        reading = deque(threads.submit(read_part, ids) for ids in parts[:MAX_READING_PARTS])
        for number, ids in enumerate(parts):
            rows.write(reading.popleft().result(), ids)
            reading += (
                threads.submit(read_part, more)
                for more in parts[number + MAX_READING_PARTS : number + MAX_READING_PARTS + 1]
            )


def open_rows(model: Path, num_blocks: int) -> BlockRows:
    """Return the blocks of a model's KV memory, filled with numbers."""
    loaded = load_model(
        ModelSource(str(model)),
        dtype=ModelDtype.AUTO,
        device=torch.device("cpu"),
        on_progress=lambda *_: None,
    )
    attached = loaded.attach(num_blocks, BLOCK_SIZE)
    for tensor in attached.store.tensors:
        tensor.view(torch.uint8).random_(0, 100)
    rows = attached.block_rows()
    assert rows is not None, "a model without attention has no K and V"
    return rows


def parts_of_paths(rows: BlockRows, num_blocks: int, folder: Path) -> dict[str, Work]:
    """Return what no write and no hit can do without, each in one thread."""
    parts = batches(num_blocks, rows.max_rows)
    held = rows.new_rows(len(parts[0]))
    views = row_views(held, len(parts[0]))
    source, target = folder / "rows", folder / "rows copied"
    source.write_bytes(bytes(num_blocks * rows.row_bytes))

    def of_each(do: Callable[[list[int]], object]) -> Callable[[], object]:
        return lambda: [do(ids) for ids in parts]

    def write_all() -> None:
        with target.open("wb", buffering=0) as file:
            for ids in parts:
                os.writev(file.fileno(), views[: len(ids)])

    def read_all() -> None:
        with source.open("rb", buffering=0) as file:
            while os.readv(file.fileno(), views):
                pass

    return {
        "KV to rows": Work(of_each(lambda ids: rows.read(ids, held))),
        "checksums": Work(
            of_each(lambda ids: [checksum_of(b"", views[at]) for at, _ in enumerate(ids)])
        ),
        "rows to one file": Work(write_all, target.unlink),
        "one file to rows": Work(read_all),
        "rows to KV": Work(of_each(lambda ids: rows.write(held, ids))),
    }


def measure_paths(rows: BlockRows, num_blocks: int, folder: Path) -> dict[str, Seconds]:
    """Return the times of plain copies, of both paths and of their parts."""
    for name in ("full", "written", "copied"):
        (folder / name).mkdir()
    full, new = (BlockStore(folder / name, FINGERPRINT, MAX_BYTES) for name in ("full", "written"))
    blocks = chain_of(num_blocks)
    write(rows, full, blocks)
    files = sorted(path for path in (folder / "full").rglob("*") if path.is_file())
    source, target = folder / "source", folder / "target"
    source.write_bytes(bytes(num_blocks * rows.row_bytes))

    def copy_files() -> None:
        for path in files:
            shutil.copyfile(path, folder / "copied" / path.name)

    works = {
        ONE_FILE: Work(lambda: shutil.copyfile(source, target), target.unlink),
        AS_MANY: Work(copy_files, lambda: empty(folder / "copied", new)),
        "write path, KV to files": Work(
            lambda: write(rows, new, blocks), lambda: empty(folder / "written", new)
        ),
        "hit path, files to KV": Work(lambda: read(rows, full, blocks)),
    }
    return best(works | parts_of_paths(rows, num_blocks, folder))


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


def told(times: Mapping[str, Seconds], num_bytes: int) -> str:
    """Return the speeds as a table."""
    lines = [
        f"{num_bytes / 1e6:.0f} MB on {read_machine().cpu}: GB/s, and that beside a copy of one",
        "file and of as many files, each by the clock and by processor seconds",
        f"{'':26}{'GB/s':>14}{'one file':>16}{'as many files':>16}",
    ]
    for name, seconds in times.items():
        speeds = "".join(f"{num_bytes / each / 1e9:7.2f}" for each in seconds)
        shares = "".join(
            f"{100 * base / each:6.0f} %"
            for bases in (times[ONE_FILE], times[AS_MANY])
            for base, each in zip(bases, seconds, strict=True)
        )
        lines.append(f"{name:26}{speeds}{shares}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--dir", type=Path, help="on the file system to be measured")
    parser.add_argument("--paths", action="store_true", help="start no engine")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        num_blocks = given.tokens // BLOCK_SIZE
        rows = open_rows(given.model, num_blocks)
        times = measure_paths(rows, num_blocks, Path(folder))
        print(told(times, num_blocks * rows.row_bytes), flush=True)
        if given.paths:
            return
        cold, warm = measure_restart(given.model, given.tokens, Path(folder))
    print(
        f"first token of {given.tokens} tokens: cold {cold.seconds:.2f} s, warm {warm.seconds:.3f} "
        f"s ({warm.num_cached} tokens loaded in {warm.loaded_s:.3f} s): "
        f"{cold.seconds / warm.seconds:.0f} times as soon"
    )


if __name__ == "__main__":
    main()
