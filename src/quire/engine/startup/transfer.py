"""Opens the listener and the peers of KV transfer, if configured."""

from pathlib import Path

from quire.engine.config import MemoryConfig
from quire.storage.disk.counts import ThreadSafeCounts
from quire.storage.disk.store import BlockStore
from quire.storage.network.address import Address, parse_address, read_secret
from quire.storage.network.counts import NO_TRANSFER
from quire.storage.network.listener import Listener, open_socket
from quire.storage.network.peer_store import PeerStore
from quire.storage.network.transfer import Transfer
from quire.storage.network.wire import Credentials


def check_transfer(config: MemoryConfig) -> None:
    """Check before a model is loaded. Raises ValueError for options that do not go together, and
    for addresses or a secret that cannot be used."""
    listen, peers = _addresses(config)
    if listen is None and not peers:
        if config.kv_transfer_secret_file is not None:
            raise ValueError(
                "--kv-transfer-secret-file needs --kv-transfer-listen or --kv-transfer-peer"
            )
        return
    if config.prefix_cache_dir is None:
        flag = "--kv-transfer-peer" if listen is None else "--kv-transfer-listen"
        raise ValueError(
            f"{flag} needs --prefix-cache-dir and --prefix-cache-bytes: what engines send each "
            "other is what these folders hold; a folder in /dev/shm is memory"
        )
    _ = _secret(config)
    named = [("--kv-transfer-peer", each) for each in peers]
    named += [] if listen is None else [("--kv-transfer-listen", listen)]
    for flag, address in named:
        if not address.is_loopback and config.kv_transfer_secret_file is None:
            raise ValueError(
                f"{flag} is {address}, which other machines reach: give all engines the same "
                "--kv-transfer-secret-file, or use 127.0.0.1"
            )


def open_transfer(config: MemoryConfig, store: BlockStore, fingerprint: bytes) -> Transfer | None:
    """Return both ends of an engine, which begin at once; None if it has none. Raises ValueError
    where the address is taken."""
    listen, peers = _addresses(config)
    if listen is None and not peers:
        return None
    credentials = Credentials(fingerprint, _secret(config))
    counts = ThreadSafeCounts(NO_TRANSFER)
    listener = None
    if listen is not None:
        try:
            listener = Listener(open_socket(listen), store, credentials, counts)
        except OSError as error:
            raise ValueError(
                f"--kv-transfer-listen is {listen}, where no engine can listen: "
                f"{error.strerror or error}"
            ) from None
    return Transfer(PeerStore(peers, credentials, counts), listener, counts)


def _addresses(config: MemoryConfig) -> tuple[Address | None, tuple[Address, ...]]:
    """Return the listening address and the peers."""
    given = config.kv_transfer_listen
    listen = None if given is None else parse_address(given)
    return listen, tuple(map(parse_address, config.kv_transfer_peers))


def _secret(config: MemoryConfig) -> bytes:
    """Return the secret; empty if all engines are on this machine and none is given."""
    path = config.kv_transfer_secret_file
    if path is None:
        return b""
    try:
        return read_secret(Path(path))
    except OSError as error:
        raise ValueError(
            f"--kv-transfer-secret-file is {path}, which cannot be read: {error.strerror or error}"
        ) from None
