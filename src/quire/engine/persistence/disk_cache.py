"""The prefix cache on disk, as the engine drives it between steps."""

from collections.abc import Callable

from quire.cache.block_hash import group_key
from quire.cache.chain import Chain
from quire.cache.persistence.counts import DiskStats
from quire.cache.persistence.store import BlockStore
from quire.cache.persistence.write_behind import WriteBehind
from quire.engine.persistence.block_port import BlockPort
from quire.engine.persistence.loading import Loading
from quire.engine.persistence.unsaved import Unsaved


class DiskCache:
    """Writes what enters the prefix cache behind, and loads what prompts begin with. `root` is the
    parent's digest of every first block."""

    def __init__(
        self,
        store: BlockStore,
        writer: WriteBehind,
        port: BlockPort,
        root: bytes,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._writer = writer
        self._unsaved = Unsaved(store, writer, port, root, clock)
        self._loading = Loading(store, writer, port, root, clock)
        self._loads = port.loads
        self._chains: dict[str, Chain] = {}
        self._num_groups = port.transfers.num_groups
        port.transfers.watch(self._unsaved.note)

    @property
    def has_work(self) -> bool:
        """Whether `before_step` has anything to do although no request runs."""
        return self._unsaved.has_work or self._loading.is_loading

    @property
    def is_writing(self) -> bool:
        """Whether blocks are queued to be written."""
        return self._writer.is_writing

    @property
    def stats(self) -> DiskStats:
        return self._store.stats

    def begin(self, request_id: str) -> None:
        """Let a request that was just accepted wait where the disk has what it begins with."""
        asked = self._loads.chain_of(request_id)
        if asked is not None:
            self._chains[request_id], _ = asked
            self._loading.begin(request_id)

    def end(self, request_id: str, *, is_finite: bool) -> None:
        """Note that a request has ended. If its numbers were not finite, its blocks may be why, and
        no other engine is to find them."""
        chain = self._chains.pop(request_id, None)
        if chain is not None and not is_finite:
            keys = [
                group_key(digest, group)
                for digest in chain.digests
                for group in range(self._num_groups)
            ]
            self._unsaved.drop(keys)
            self._writer.drop(keys)

    def before_step(self, *, is_idle: bool) -> None:
        """Take in what was read, and copy out what is new: at once if the engine `is_idle`."""
        if self._loading.is_loading:
            self._loading.take_in()
        self._unsaved.flush(is_idle=is_idle)

    def wait(self, seconds: float) -> bool:
        """Wait for what is read or written, at most so long; return False if nothing is."""
        if self._loading.is_loading:
            self._loading.wait(seconds)
        elif self._unsaved.has_work:
            self._unsaved.wait(seconds)
        else:
            return False
        return True

    def reset(self) -> None:
        """Make all that is on disk unfindable, for this engine and all that share the folder."""
        self._loading.stop()
        self._unsaved.clear()
        self._store.reset()

    def close(self) -> None:
        """Write what is queued, for a moment at most, and stop."""
        self._unsaved.flush(is_idle=True)
        self._loading.close()
        self._writer.close()
