"""Opens the prefix cache on disk, if one is configured."""

import errno
import logging
import time
from pathlib import Path
from typing import NamedTuple

from quire.cache.kv_cache import KVCache
from quire.cache.layout import Layout
from quire.engine.config import EngineConfig, MemoryConfig
from quire.engine.messages import EngineFacts
from quire.engine.persistence.block_port import BlockPort
from quire.engine.persistence.disk_cache import DiskCache
from quire.engine.persistence.stores import Stores
from quire.engine.recording.recorded_scheduler import RecordedScheduler
from quire.engine.startup.fingerprint import fingerprint_of
from quire.engine.startup.transfer import open_transfer
from quire.models.batch import Model
from quire.models.block_rows import BlockRowsModel
from quire.models.kv.kv_rows import staging_rows
from quire.scheduler.scheduler import Scheduler
from quire.storage.disk.files import open_folder
from quire.storage.disk.store import BlockStore
from quire.storage.disk.write_behind import WriteBehind

logger = logging.getLogger(__name__)

SCAN_S = 1.0
"""Seconds that a start waits for the list of the folder; a larger folder is listed beside serving.
"""


UNUSABLE = frozenset(
    (
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT),
        *(errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG),
    )
)
"""Errors that need an operator: they end the start with a message."""


class OpenedDisk(NamedTuple):
    """A folder of blocks and what goes with it, and the fingerprint of their model."""

    stores: Stores
    fingerprint: bytes


def check_disk(config: MemoryConfig) -> None:
    """Check before a model is loaded. Raises ValueError if the folder cannot be used."""
    if config.prefix_cache_dir is not None:
        check_folder("--prefix-cache-dir", config.prefix_cache_dir)


def check_folder(flag: str, folder: str) -> None:
    """Raise ValueError if the folder that `flag` names cannot be used; a full or failing disk may
    recover."""
    try:
        open_folder(Path(folder))
    except OSError as error:
        if error.errno not in UNUSABLE:
            logger.warning("%s is %s, which cannot be written now: %s", flag, folder, error)
            return
        raise ValueError(
            f"{flag} is {folder}, which cannot be used: {error.strerror or error}. "
            "It must be a folder that can be made, read and written"
        ) from None


def staging_bytes(config: MemoryConfig, row_bytes: int, *, is_host: bool) -> int:
    """Return the device bytes of rows in transit, if the device is not the host."""
    if config.prefix_cache_dir is None or is_host or not row_bytes:
        return 0
    return staging_rows(row_bytes) * row_bytes


def open_disk(
    config: EngineConfig, facts: EngineFacts, layout: Layout, model: Model
) -> OpenedDisk | None:
    """Return the store of this model, which is being scanned; None if there is none. Raises
    ValueError for a model that has no blocks, or larger ones than the folder may hold."""
    memory = config.memory
    if memory.prefix_cache_dir is None or memory.prefix_cache_bytes is None:
        return None
    keeps_any = bool(layout.groups) or facts.num_states > 0
    if not keeps_any or not facts.is_causal or not isinstance(model, BlockRowsModel):
        raise ValueError(
            "--prefix-cache-dir does not go with this model, which keeps no keys and values of "
            "prompts"
        )
    for kind, rows in (("block", model.block_rows()), ("recurrent state", model.state_rows())):
        if rows is not None and memory.prefix_cache_bytes < 2 * rows.row_bytes:
            raise ValueError(
                f"--prefix-cache-bytes is {memory.prefix_cache_bytes}, but a {kind} of this model "
                f"takes {rows.row_bytes} bytes: give it room for many"
            )
    root, began = Path(memory.prefix_cache_dir), time.monotonic()
    fingerprint = fingerprint_of(config, facts, layout, model.state_form, root)
    logger.info(
        "prefix cache on disk: %s, fingerprint %s (%.2f s)",
        root,
        fingerprint[:16].hex(),
        time.monotonic() - began,
    )
    store = BlockStore(root, fingerprint, memory.prefix_cache_bytes)
    transfer = open_transfer(memory, store, fingerprint)
    return OpenedDisk(Stores(store, WriteBehind(store), transfer), fingerprint)


def build_disk_cache(
    opened: OpenedDisk | None, cache: KVCache, scheduler: Scheduler, model: Model, root: bytes
) -> DiskCache | None:
    """Return the prefix cache on disk of an engine; `root` is the parent's digest of every first
    block."""
    if opened is None or not isinstance(model, BlockRowsModel):
        return None
    transfers = cache.transfers
    if isinstance(scheduler, RecordedScheduler):
        transfers = scheduler.transfers
    port = BlockPort(
        cache, transfers, scheduler.loads, model, model.block_rows(), model.state_rows()
    )
    disk = DiskCache(opened.stores, port, root, time.monotonic)
    opened.stores.writer.wait_until_scanned(SCAN_S)
    stats = disk.stats
    logger.info("prefix cache on disk: %d blocks, %d bytes", stats.num_blocks, stats.num_bytes)
    return disk
