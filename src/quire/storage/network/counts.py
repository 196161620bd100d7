"""The accounts of blocks that engines send each other."""

from dataclasses import dataclass

from quire.storage.disk.counts import summed

GAUGES = frozenset(("num_peers", "num_connected", "num_offered_blocks", "num_asking"))
"""The fields that are gauges."""


@dataclass(frozen=True, slots=True)
class TransferStats:
    """The accounts of blocks that come from other engines and go to them; a state of recurrent
    layers counts as one.

    Of `num_peers` engines `num_connected` can be asked now, and offer `num_offered_blocks`;
    `num_asking` connections are open by which others ask this one. Of the blocks that prompts
    lacked here, `num_hits` were requested, `num_declined` were offered but faster to compute, and
    `num_misses` were not offered. `num_loaded_tokens` came into memory. `num_received` blocks
    arrived intact, `num_gone` were missing at the peer, `num_corrupt` were wrong, `num_sent` went
    to others. `num_failed` connections broke or were too slow, and `num_refused` were not let in.
    """

    num_peers: int = 0
    num_connected: int = 0
    num_offered_blocks: int = 0
    num_asking: int = 0
    num_hits: int = 0
    num_misses: int = 0
    num_declined: int = 0
    num_loaded_tokens: int = 0
    num_received: int = 0
    num_gone: int = 0
    num_corrupt: int = 0
    num_sent: int = 0
    num_failed: int = 0
    num_refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    receive_s: float = 0.0
    send_s: float = 0.0

    def after(self, before: "TransferStats") -> "TransferStats":
        """Return these statistics with the counters of `before` added."""
        return summed(before, self, GAUGES)


NO_TRANSFER = TransferStats()
