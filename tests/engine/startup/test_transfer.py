"""Options of blocks that engines send each other: what goes together, and what is refused."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from quire.engine.config import MemoryConfig
from quire.engine.startup.transfer import check_transfer, open_transfer
from quire.storage.disk.store import BlockStore

DISK = MemoryConfig(prefix_cache_dir="/dev/shm/x", prefix_cache_bytes=1 << 20)
HERE, THERE = "127.0.0.1:7100", "10.0.0.1:7100"


@pytest.mark.parametrize(
    "config",
    [
        MemoryConfig(),
        DISK,
        replace(DISK, kv_transfer_listen=HERE),
        replace(DISK, kv_transfer_peers=(HERE, "localhost:7200")),
        replace(DISK, kv_transfer_listen="[::1]:7100", kv_transfer_peers=(HERE,)),
    ],
)
def test_options_that_go_together(config: MemoryConfig) -> None:
    check_transfer(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MemoryConfig(kv_transfer_listen=HERE), "--kv-transfer-listen needs --prefix-cache-dir"),
        (MemoryConfig(kv_transfer_peers=(HERE,)), "--kv-transfer-peer needs --prefix-cache-dir"),
        (replace(DISK, kv_transfer_listen=THERE), "--kv-transfer-listen is 10.0.0.1:7100, which"),
        (replace(DISK, kv_transfer_listen="0.0.0.0:1"), "--kv-transfer-listen is 0.0.0.0:1, which"),
        (replace(DISK, kv_transfer_peers=(HERE, "b:1")), "--kv-transfer-peer is b:1, which"),
        (replace(DISK, kv_transfer_secret_file="x"), "needs --kv-transfer-listen or"),
        (
            replace(DISK, kv_transfer_listen=HERE, kv_transfer_secret_file="/nowhere/at/all"),
            "--kv-transfer-secret-file is /nowhere/at/all, which cannot be read: No such file",
        ),
    ],
)
def test_options_that_do_not(config: MemoryConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_transfer(config)


def test_other_machines_are_for_those_with_a_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    config = replace(
        DISK,
        kv_transfer_listen="0.0.0.0:7100",
        kv_transfer_peers=(THERE,),
        kv_transfer_secret_file=str(secret),
    )
    secret.write_text("0123456789abcdef\n")
    check_transfer(config)
    secret.write_text("0123\n")
    with pytest.raises(ValueError, match="must have 16 or more"):
        check_transfer(config)


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, bytes(32), 1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = replace(DISK, kv_transfer_listen=f"127.0.0.1:{port}")
        with pytest.raises(ValueError, match=f"--kv-transfer-listen is 127.0.0.1:{port}, where"):
            open_transfer(config, store, bytes(32))
    opened = open_transfer(config, store, bytes(32))
    assert opened is not None and opened.listener is not None
    assert opened.listener.port == port
    opened.close()
