"""Stores of blocks on both ends of a connection over loopback."""

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.storage.disk.counts import ThreadSafeCounts
from quire.storage.disk.store import BlockStore
from quire.storage.network.address import Address
from quire.storage.network.counts import NO_TRANSFER
from quire.storage.network.listener import Listener, open_socket
from quire.storage.network.peer_store import PeerStore
from quire.storage.network.transfer import Transfer
from quire.storage.network.wire import Credentials
from tests.engine.persistence.disk_world import FINGERPRINT

SECRET = b"the secret of all engines"
CREDENTIALS = Credentials(FINGERPRINT, SECRET)
LOW_PORTS = range(20_000, 30_000)


def free_address() -> Address:
    """An address that stays free until it is listened at: no system hands out such low ports by
    itself, as it does to the tests beside this one."""
    for port in random.SystemRandom().sample(LOW_PORTS, 100):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return Address("127.0.0.1", port)
        except OSError:
            continue
    raise OSError("no port is free among a hundred")


@contextmanager
def offered(
    store: BlockStore, address: Address, credentials: Credentials = CREDENTIALS
) -> Iterator[Listener]:
    """A listener that is closed at the end."""
    listener = Listener(open_socket(address), store, credentials, ThreadSafeCounts(NO_TRANSFER))
    try:
        yield listener
    finally:
        listener.close()


@contextmanager
def asking(*addresses: Address, credentials: Credentials = CREDENTIALS) -> Iterator[PeerStore]:
    """Peers that are asked for nothing more at the end."""
    peers = PeerStore(addresses, credentials, ThreadSafeCounts(NO_TRANSFER))
    try:
        yield peers
    finally:
        peers.close()


def ends_of(
    peers: tuple[Address, ...] = (), listen: Address | None = None
) -> Callable[[BlockStore], Transfer]:
    """A function that opens both ends of an engine over the store that it is given."""

    def opened(store: BlockStore) -> Transfer:
        counts = ThreadSafeCounts(NO_TRANSFER)
        listener = None
        if listen is not None:
            listener = Listener(open_socket(listen), store, CREDENTIALS, counts)
        return Transfer(PeerStore(peers, CREDENTIALS, counts), listener, counts)

    return opened
