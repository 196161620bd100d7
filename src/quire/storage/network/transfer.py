"""Both ends of KV transfer: blocks offered to peers, and blocks offered by them."""

from dataclasses import dataclass

from quire.storage.disk.counts import ThreadSafeCounts
from quire.storage.network.counts import TransferStats
from quire.storage.network.listener import Listener
from quire.storage.network.peer_store import PeerStore


@dataclass(frozen=True, slots=True)
class Transfer:
    """The blocks of `peers`, none or more, and the `listener` by which an engine offers its own, if
    it does."""

    peers: PeerStore
    listener: Listener | None
    counts: ThreadSafeCounts[TransferStats]

    @property
    def stats(self) -> TransferStats:
        return self.counts.stats(
            num_peers=self.peers.num_peers,
            num_connected=self.peers.num_connected,
            num_offered_blocks=self.peers.num_blocks,
            num_asking=0 if self.listener is None else self.listener.num_asking,
        )

    def close(self) -> None:
        """Offer nothing more, and ask for nothing."""
        self.peers.close()
        if self.listener is not None:
            self.listener.close()
