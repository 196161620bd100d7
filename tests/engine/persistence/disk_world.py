"""Toy engines, one after the other, that share a folder on disk."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.cache.block_hash import BlockHash, HashAlgorithm, build_block_hash
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.sharing import OPEN, SharingTerms
from quire.engine.engine import Engine, EngineExtras
from quire.engine.persistence.block_port import BlockPort
from quire.engine.persistence.disk_cache import DiskCache
from quire.engine.persistence.stores import Stores
from quire.engine.runner import Runner, RunnerConfig
from quire.models.config import KVSize
from quire.models.toy import ToyModel, toy_layout
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta
from quire.storage.disk.store import BlockStore
from quire.storage.disk.write_behind import WriteBehind
from quire.storage.network.transfer import Transfer
from tests.engine.toy_engine import MAX_MODEL_LEN, VOCAB_SIZE, Shape, scheduler_config

FINGERPRINT = bytes(range(32))
PATIENCE_S = 20.0
SLOW = 1000.0
"""How much slower computing seems than it is, unless a test says otherwise: a load is worth its
while on a busy machine too."""


def cache_of(shape: Shape, hashed: BlockHash) -> KVCache:
    return KVCache(
        CacheConfig(
            shape.num_blocks,
            shape.block_size,
            True,
            toy_layout(shape.layers, hybrid=shape.hybrid).patterns,
            max_chunk_tokens=shape.max_num_batched_tokens,
            num_host_blocks=shape.num_host_blocks,
            block_hash=hashed,
            num_states=shape.num_states,
            num_host_states=shape.num_host_states,
            snapshots=shape.snapshots,
        )
    )


def runner_config(shape: Shape) -> RunnerConfig:
    return RunnerConfig(
        max_num_seqs=shape.max_num_seqs,
        max_num_blocks=-(-MAX_MODEL_LEN // shape.block_size),
        block_size=shape.block_size,
        device="cpu",
        tables=toy_layout(shape.layers, hybrid=shape.hybrid).tables,
    )


class DiskWorld:
    """A toy engine with its prefix cache in `folder`; its clock goes faster by `slowness`."""

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        *,
        fingerprint: bytes = FINGERPRINT,
        max_bytes: int = 1 << 30,
        open_transfer: Callable[[BlockStore], Transfer | None] = lambda store: None,
    ) -> None:
        folder.mkdir(exist_ok=True, parents=True)
        self.slowness = SLOW
        self.store = BlockStore(folder, fingerprint, max_bytes)
        self.writer = WriteBehind(self.store)
        hashed = build_block_hash(HashAlgorithm.SHA256, seed=fingerprint.hex(), noise=b"")
        self.cache = cache_of(shape, hashed)
        self.scheduler = Scheduler(scheduler_config(shape), self.cache)
        size = KVSize(
            shape.num_blocks,
            shape.block_size,
            shape.num_host_blocks,
            shape.num_states,
            shape.num_host_states,
        )
        model = ToyModel(VOCAB_SIZE, size, shape.layers, hybrid=shape.hybrid)
        port = BlockPort(
            self.cache,
            self.cache.transfers,
            self.scheduler.loads,
            model,
            model.block_rows(),
            model.state_rows(),
        )
        stores = Stores(self.store, self.writer, open_transfer(self.store))
        self.disk = DiskCache(stores, port, hashed.root, time.monotonic)
        assert self.writer.wait_until_scanned(PATIENCE_S)
        runner = Runner(runner_config(shape), model)
        self.engine = Engine(
            self.scheduler,
            runner,
            lambda: self.slowness * time.monotonic(),
            EngineExtras(self.disk),
            is_overlapped=shape.late,
        )
        self.deltas: dict[str, list[Delta]] = {}

    def add(self, new: NewRequest) -> None:
        assert self.engine.submit(new) is None
        self.deltas[new.id] = []

    def abort(self, request_id: str) -> None:
        delta = self.engine.abort(request_id)
        if delta is not None:
            self.deltas[request_id].append(delta)

    def step(self) -> None:
        """One step; every step checks the accounts."""
        for delta in self.engine.step().deltas:
            self.deltas[delta.request_id].append(delta)
        self.cache.check()

    def run(self) -> None:
        """Until nothing is left to do, nothing to write either."""
        end_s = time.monotonic() + PATIENCE_S
        while self.engine.has_work:
            assert time.monotonic() < end_s
            self.step()
        assert self.writer.wait_until_written(PATIENCE_S)

    def tokens_of(self, request_id: str) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas[request_id] for token in delta.token_ids)

    def num_cached(self, request_id: str) -> int:
        finish = self.deltas[request_id][-1].finish
        assert finish is not None
        return finish.num_cached_tokens

    def reasons(self, request_id: str) -> list[str]:
        finish = self.deltas[request_id][-1].finish
        assert finish is not None
        return [event.reason for event in finish.timeline]


@contextmanager
def disk_world(
    folder: Path, shape: Shape, *, fingerprint: bytes = FINGERPRINT, max_bytes: int = 1 << 30
) -> Iterator[DiskWorld]:
    """A toy engine that is closed at the end."""
    world = DiskWorld(folder, shape, fingerprint=fingerprint, max_bytes=max_bytes)
    try:
        yield world
    finally:
        world.engine.close()


def ask(
    name: str, prompt: tuple[int, ...], *, num_outputs: int = 4, sharing: SharingTerms = OPEN
) -> NewRequest:
    """A greedy request."""
    return NewRequest(
        name, prompt, Sampling(temperature=0.0), Stopping(num_outputs), sharing=sharing
    )


def eventually(holds: Callable[[], bool]) -> None:
    """Waits for what threads do."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.005)
