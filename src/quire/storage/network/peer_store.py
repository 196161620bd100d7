"""The blocks that other engines offer, as one store that is only read."""

import time
from collections.abc import Iterable, Sequence

from quire.storage.disk.block_header import BlockIdentity, header_of
from quire.storage.disk.counts import ThreadSafeCounts
from quire.storage.disk.extent_file import Block, LookupOutcome
from quire.storage.network.address import Address
from quire.storage.network.counts import TransferStats
from quire.storage.network.peer import Peer
from quire.storage.network.wire import Credentials


class PeerStore:
    """Reads blocks from any of the engines at `addresses`. A failure of a peer is not an error for
    the caller: blocks that do not arrive in time are missing."""

    def __init__(
        self,
        addresses: Iterable[Address],
        credentials: Credentials,
        counts: ThreadSafeCounts[TransferStats],
    ) -> None:
        self.counts = counts
        self._fingerprint = credentials.fingerprint
        self._peers = [Peer(address, credentials) for address in addresses]

    @property
    def num_blocks(self) -> int:
        """The blocks that are offered, each as often as it is."""
        return sum(peer.num_blocks for peer in self._peers)

    @property
    def num_peers(self) -> int:
        return len(self._peers)

    @property
    def num_connected(self) -> int:
        """The reachable engines."""
        return sum(peer.is_connected for peer in self._peers)

    def has(self, key: bytes) -> bool:
        """Return whether a block is offered, as far as is known."""
        return any(peer.has(key) for peer in self._peers)

    def get(self, identities: Sequence[BlockIdentity], rows: Sequence[memoryview]) -> int:
        """Read blocks into as many `rows`, up to the first that nobody has or that is not what it
        should be, and return how many were read; the other rows mean nothing."""
        blocks = [
            Block(identity.key, header_of(self._fingerprint, identity, len(row)), row)
            for identity, row in zip(identities, rows, strict=True)
        ]
        began, num_read = time.perf_counter(), 0
        untried = list(self._peers)
        while num_read < len(blocks):
            key = blocks[num_read].key
            peer = next((each for each in untried if each.has(key)), None)
            if peer is None:
                break
            untried.remove(peer)
            num_read += self._read(peer, blocks[num_read:])
        num_bytes = sum(len(row) for row in rows[:num_read])
        seconds = time.perf_counter() - began
        self.counts.add(num_received=num_read, received_bytes=num_bytes, receive_s=seconds)
        return num_read

    def reset(self) -> None:
        """Ask for none of the blocks that are offered now."""
        for peer in self._peers:
            peer.void()

    def close(self) -> None:
        """Ask for nothing more."""
        for peer in self._peers:
            peer.close()

    def _read(self, peer: Peer, blocks: Sequence[Block]) -> int:
        """Read the first blocks that the peer has; return the number of intact ones. If it is
        smaller, the peer no longer has the next one."""
        num_asked = next(
            (number for number, block in enumerate(blocks) if not peer.has(block.key)), len(blocks)
        )
        try:
            answer = peer.read(blocks[:num_asked])
        except OSError:
            self.counts.add(num_failed=1)
            return 0
        self.counts.add(
            num_gone=answer.ended_by is LookupOutcome.MISSING,
            num_corrupt=answer.ended_by is LookupOutcome.BAD,
        )
        return answer.num_whole
