"""Blocks that one store offers and another end asks for, over loopback: what is got is what was
put, or a miss, whatever happens on the way.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from quire.storage.disk.block_header import CHECKSUM_BYTES, header_of
from quire.storage.disk.store import BlockStore
from quire.storage.network.address import Address, parse_address, read_secret
from quire.storage.network.peer_store import PeerStore
from quire.storage.network.wire import (
    MAGIC,
    MAX_KEYS,
    NONCE_BYTES,
    PROOF_BYTES,
    SIZES,
    Credentials,
    FrameKind,
    PeerSocket,
    frames_of,
    read_frame,
)
from tests.engine.persistence.disk_world import PATIENCE_S, eventually
from tests.profiles import cases
from tests.storage.disk.blocks import FINGERPRINT, ROW_BYTES, files_of, identity, put, row
from tests.storage.network.ends import SECRET, asking, free_address, offered
from tests.storage.network.proxy import Proxy

ENTRY_BYTES = len(header_of(FINGERPRINT, identity(0), ROW_BYTES)) + CHECKSUM_BYTES
GREETING_BYTES = len(MAGIC) + NONCE_BYTES + 1 + PROOF_BYTES
"""An offering end says so many bytes before any block."""
BLOCK_BYTES = SIZES.size + ENTRY_BYTES + ROW_BYTES
NUMBERS = range(6)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    """A store with some blocks."""
    store = BlockStore(tmp_path, FINGERPRINT, 1 << 20)
    assert put(store, *NUMBERS)
    yield store


def get_all(peers: PeerStore, *numbers: int) -> list[bytes]:
    """The values of the leading blocks that come."""
    found = [bytearray(ROW_BYTES) for _ in numbers]
    rows = [memoryview(each) for each in found]
    return [bytes(each) for each in found[: peers.get([identity(n) for n in numbers], rows)]]


def wait_for(peers: PeerStore, *numbers: int) -> None:
    """Until these blocks are known to be offered, and no others."""
    eventually(
        lambda: (
            peers.num_blocks == len(numbers) and all(peers.has(identity(n).key) for n in numbers)
        )
    )


def values(*numbers: int) -> list[bytes]:
    return [row(number) for number in numbers]


def test_blocks_are_had_from_another_store(store: BlockStore) -> None:
    address = free_address()
    with offered(store, address), asking(address) as peers:
        wait_for(peers, *NUMBERS)
        assert get_all(peers, *NUMBERS) == values(*NUMBERS)
        assert get_all(peers, 4, 2, 0) == values(4, 2, 0)
        assert get_all(peers, 3, 9, 4) == values(3)
        stats = peers.counts.stats()
        assert (stats.num_received, stats.received_bytes) == (10, 10 * ROW_BYTES)


def test_what_changes_is_told(store: BlockStore) -> None:
    address = free_address()
    with offered(store, address), asking(address) as peers:
        wait_for(peers, *NUMBERS)
        assert put(store, 20, 21)
        wait_for(peers, *NUMBERS, 20, 21)
        store.drop([identity(20).key])
        wait_for(peers, *NUMBERS, 21)
        store.reset()
        wait_for(peers)
        assert put(store, 1)
        wait_for(peers, 1)


def test_blocks_of_several_peers_are_one_prompt(store: BlockStore, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = BlockStore(tmp_path / "other", FINGERPRINT, 1 << 20)
    assert put(other, 5, 6, 7)
    here, there, nobody = free_address(), free_address(), free_address()
    with offered(store, here), offered(other, there), asking(nobody, here, there) as peers:
        eventually(lambda: peers.num_blocks == len(NUMBERS) + 3)
        assert peers.num_connected == 2
        assert get_all(peers, 4, 5, 6, 7, 8) == values(4, 5, 6, 7)


@pytest.mark.parametrize(
    "credentials",
    [
        Credentials(bytes(32), SECRET),
        Credentials(FINGERPRINT, b"another"),
        Credentials(FINGERPRINT, b""),
    ],
    ids=["another model", "another secret", "no secret"],
)
def test_others_are_not_let_in(store: BlockStore, credentials: Credentials) -> None:
    address = free_address()
    with (
        offered(store, address) as listener,
        asking(address, credentials=credentials) as others,
        asking(address) as peers,
    ):
        wait_for(peers, *NUMBERS)
        eventually(lambda: listener.counts.stats().num_refused > 0)
        assert (others.num_blocks, others.num_connected) == (0, 0)


def test_an_end_that_does_not_know_the_secret_is_not_believed(store: BlockStore) -> None:
    """It lets in whoever comes, and offers blocks that nobody may take."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with asking(Address("127.0.0.1", listening.getsockname()[1])) as peers:
            connection, _ = listening.accept()
            with connection:
                wire, end_s = PeerSocket(connection), time.monotonic() + PATIENCE_S
                wire.send(MAGIC + bytes(NONCE_BYTES), end_s)
                wire.read(NONCE_BYTES + len(FINGERPRINT) + 1 + PROOF_BYTES, end_s)
                wire.send(bytes(1 + PROOF_BYTES), end_s)
                wire.send(frames_of(FrameKind.ADDED, [identity(0).key]), end_s)
                with pytest.raises(OSError):
                    wire.read(1, end_s)
            assert not peers.has(identity(0).key)


damages = st.tuples(
    st.sampled_from(["flip", "cut"]), st.integers(0, GREETING_BYTES + 4 * BLOCK_BYTES)
)


@cases(25)
@given(damages)
def test_no_wrong_block_is_had_over_a_bad_wire(damage: tuple[str, int]) -> None:
    kind, at = damage
    with TemporaryDirectory() as folder:
        store = BlockStore(Path(folder), FINGERPRINT, 1 << 20)
        assert put(store, *range(4))
        address = free_address()
        with offered(store, address):
            proxy = Proxy(address, **{f"{kind}_at": at})
            with asking(proxy.address) as peers:
                wait_for(peers, *range(4))
                found = get_all(peers, *range(4))
            proxy.cut()
    assert found == values(*range(len(found)))
    num_good = max(at - GREETING_BYTES, 0) // BLOCK_BYTES
    assert len(found) <= num_good and (num_good < 4 or len(found) == 4)
    event(f"{len(found)} of 4 blocks")


def test_what_is_damaged_on_disk_is_asked_for_once(store: BlockStore, tmp_path: Path) -> None:
    (path,) = files_of(tmp_path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    address = free_address()
    with offered(store, address), asking(address) as peers:
        wait_for(peers, *NUMBERS)
        assert get_all(peers, *NUMBERS) == values(*NUMBERS[:-1])
        assert peers.counts.stats().num_corrupt == 1
        assert not peers.has(identity(5).key)
        path.unlink()
        assert get_all(peers, 0) == []
        assert peers.counts.stats().num_gone == 1


def test_a_peer_that_goes_and_comes_back_is_found_again(store: BlockStore) -> None:
    address = free_address()
    with asking(address) as peers:
        with offered(store, address):
            wait_for(peers, *NUMBERS)
            assert get_all(peers, 0) == values(0)
        eventually(lambda: peers.num_blocks == 0)
        assert get_all(peers, 0) == []
        with offered(store, address):
            wait_for(peers, *NUMBERS)
            assert get_all(peers, *NUMBERS) == values(*NUMBERS)


def test_a_peer_that_hangs_is_a_miss_and_then_not_asked(store: BlockStore) -> None:
    address = free_address()
    with offered(store, address):
        proxy = Proxy(address)
        with asking(proxy.address) as peers:
            wait_for(peers, *NUMBERS)
            proxy.hold()
            assert get_all(peers, 0) == []
            assert peers.counts.stats().num_failed == 1
            assert (peers.num_blocks, peers.has(identity(0).key)) == (0, False)
        proxy.cut()


def test_after_a_reset_only_what_comes_anew_is_asked_for(store: BlockStore) -> None:
    address = free_address()
    with offered(store, address), asking(address) as peers:
        wait_for(peers, *NUMBERS)
        peers.reset()
        assert peers.num_blocks == 0
        store.drop([identity(2).key])
        assert put(store, 2, 30)
        wait_for(peers, 2, 30)


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(200), bytes(range(256)) * 20]
)
def test_noise_leaves_a_listener_as_it_was(store: BlockStore, said: bytes) -> None:
    address = free_address()
    with offered(store, address) as listener, asking(address) as peers:
        wait_for(peers, *NUMBERS)
        with socket.create_connection(address) as noise:
            noise.sendall(said)
            with suppress(OSError):  # the listener may have hung up already
                noise.shutdown(socket.SHUT_WR)
            eventually(lambda: listener.counts.stats().num_refused == 1)
        assert get_all(peers, *NUMBERS) == values(*NUMBERS)


@given(st.lists(st.binary(max_size=8), max_size=MAX_KEYS + 50).filter(len))
@cases(20)
def test_frames_carry_keys(keys: list[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    with one, other:
        one.sendall(frames_of(FrameKind.ADDED, keys))
        wire, received = PeerSocket(other), list[bytes]()
        while len(received) < len(keys):
            frame = read_frame(wire, time.monotonic() + PATIENCE_S)
            assert frame.kind is FrameKind.ADDED
            received += frame.keys
    assert received == keys


@pytest.mark.parametrize(
    ("given_", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:7100", "127.0.0.1", 7100, True),
        ("localhost:1", "localhost", 1, True),
        ("[::1]:65535", "::1", 65535, True),
        ("0.0.0.0:7100", "0.0.0.0", 7100, False),
        ("prefill-0.quire:7100", "prefill-0.quire", 7100, False),
    ],
)
def test_an_address_is_a_host_and_a_port(
    given_: str, host: str, port: int, is_loopback: bool
) -> None:
    address = parse_address(given_)
    assert address == Address(host, port)
    assert address.is_loopback is is_loopback
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("given_", ["", "7100", ":7100", "a:", "a:0", "a:65536", "::1:7100", "a:b"])
def test_another_address_is_refused(given_: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT|port of"):
        parse_address(given_)


def test_a_short_secret_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("  sixteen bytes it\n")
    assert read_secret(path) == b"sixteen bytes it"
    path.write_text("too short\n")
    with pytest.raises(ValueError, match="has 9 bytes, must have 16"):
        read_secret(path)
