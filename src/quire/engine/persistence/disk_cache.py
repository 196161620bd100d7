"""The prefix cache on disk and in other engines, as the engine drives it between steps."""

from collections.abc import Callable

from quire.cache.block_hash import group_key
from quire.cache.chain import Chain, Content
from quire.engine.persistence.block_port import BlockPort
from quire.engine.persistence.loading import BlockLoader, Source
from quire.engine.persistence.stores import Stores
from quire.engine.persistence.unsaved import RowSavers
from quire.scheduler.reasons import LoadSource
from quire.storage.disk.counts import DiskStats
from quire.storage.network.counts import TransferStats


class DiskCache:
    """Writes new blocks and states of the prefix cache in the background, and loads prefixes of
    prompts from the folder or from other engines. `root` is the parent digest of every first
    block."""

    def __init__(
        self, stores: Stores, port: BlockPort, root: bytes, clock: Callable[[], float]
    ) -> None:
        self._stores = stores
        self._store, self._writer = stores.store, stores.writer
        self._unsaved = RowSavers(stores, port, root, clock)
        disk = Source(LoadSource.DISK, stores.store, self._renew)
        self._from_disk = BlockLoader(disk, port, root, clock, self._go_on)
        self._loadings = [self._from_disk]
        if stores.transfer is not None:
            peers = Source(LoadSource.PEER, stores.transfer.peers, _renew_nothing)
            self._loadings.append(BlockLoader(peers, port, root, clock, _do_nothing))
        self._loads = port.loads
        self._chains: dict[str, Chain] = {}
        self._groups = port.transfers.groups
        port.transfers.watch(self._unsaved.note)

    @property
    def has_work(self) -> bool:
        """Whether `before_step` has anything to do although no request runs."""
        return self._unsaved.has_work or any(each.is_loading for each in self._loadings)

    @property
    def is_busy(self) -> bool:
        """Whether blocks are queued to be written, or may come from other engines or go to them."""
        return self._writer.is_writing or self._stores.transfer is not None

    @property
    def stats(self) -> DiskStats:
        return self._store.stats

    @property
    def transfer_stats(self) -> TransferStats | None:
        """The statistics of KV transfer, None without it."""
        return self._stores.transfer_stats

    def begin(self, request_id: str) -> None:
        """Let a new request wait if a store has further blocks of its prefix."""
        asked = self._loads.chain_of(request_id)
        if asked is not None:
            self._chains[request_id], _ = asked
            self._from_disk.begin(request_id)

    def end(self, request_id: str, *, is_finite: bool) -> None:
        """Note that a request has ended. If its numbers were not finite, its blocks may be why, and
        no other engine is to find them."""
        chain = self._chains.pop(request_id, None)
        if chain is not None and not is_finite:
            keys = [group_key(digest, group) for digest in chain.digests for group in self._groups]
            self._unsaved.drop(keys)
            self._writer.drop(keys)

    def before_step(self, *, is_idle: bool) -> None:
        """Add the loaded blocks, and copy new blocks out: immediately if the engine `is_idle`."""
        for loading in self._loadings:
            if loading.is_loading:
                loading.take_in()
        self._unsaved.flush(is_idle=is_idle)

    def wait(self, seconds: float) -> bool:
        """Wait for reads or writes, for at most `seconds`; return False if nothing is."""
        loading = next((each for each in self._loadings if each.is_loading), None)
        if loading is not None:
            loading.wait(seconds)
        elif self._unsaved.has_work:
            self._unsaved.wait(seconds)
        else:
            return False
        return True

    def reset(self) -> None:
        """Make all that is on disk unfindable, for this engine and all that share the folder, and
        all that other engines offer for this one."""
        for loading in self._loadings:
            loading.stop()
        self._unsaved.clear()
        self._store.reset()
        if self._stores.transfer is not None:
            self._stores.transfer.peers.reset()

    def close(self) -> None:
        """Write queued blocks for a short time, and stop."""
        self._unsaved.flush(is_idle=True)
        for loading in self._loadings:
            loading.close()
        self._writer.close()
        if self._stores.transfer is not None:
            self._stores.transfer.close()

    def _renew(self, content: Content) -> None:
        keys = (group_key(content.digest, group) for group in self._groups)
        if any(map(self._store.is_stale, keys)):
            self._writer.renew(content)

    def _go_on(self, request_id: str) -> None:
        """Load blocks from other engines that the folder lacks."""
        for loading in self._loadings[1:]:
            loading.begin(request_id)


def _renew_nothing(content: Content) -> None:
    """Offer the blocks to other engines."""


def _do_nothing(request_id: str) -> None:
    """Let the rest of a prompt be computed."""
