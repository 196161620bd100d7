"""The slower stores of one engine."""

from typing import NamedTuple

from quire.storage.disk.store import BlockStore
from quire.storage.disk.write_behind import WriteBehind
from quire.storage.network.counts import TransferStats
from quire.storage.network.transfer import Transfer


class Stores(NamedTuple):
    """A folder of blocks, its writer, and the engines that share it over the network, if any."""

    store: BlockStore
    writer: WriteBehind
    transfer: Transfer | None = None

    @property
    def is_offered(self) -> bool:
        """Whether other engines may fetch blocks of the folder."""
        return self.transfer is not None and self.transfer.listener is not None

    @property
    def transfer_stats(self) -> TransferStats | None:
        """The statistics of KV transfer, None without it."""
        return None if self.transfer is None else self.transfer.stats
