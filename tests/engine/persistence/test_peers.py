"""Toy engines that send each other blocks over loopback: what one computed the other has, and every
text is what the oracle says.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire.cache.sharing import OPEN, SharingTerms
from quire.scheduler.reasons import Reason
from quire.storage.network.counts import TransferStats
from tests.engine.persistence.disk_world import DiskWorld, ask, eventually
from tests.engine.persistence.test_disk_cache import PROMPT, SHAPE, SHAPES, extents_of
from tests.engine.toy_engine import Shape, alone
from tests.storage.network.ends import ends_of, free_address
from tests.storage.network.proxy import Proxy


@contextmanager
def two_worlds(folder: Path, shape: Shape) -> Iterator[tuple[DiskWorld, DiskWorld, Proxy]]:
    """An engine that offers its blocks, one that asks for them, and the wire between them."""
    address = free_address()
    offers = DiskWorld(folder / "offers", shape, open_transfer=ends_of(listen=address))
    proxy = Proxy(address)
    asks = DiskWorld(folder / "asks", shape, open_transfer=ends_of((proxy.address,)))
    try:
        yield offers, asks, proxy
    finally:
        asks.engine.close()
        proxy.cut()
        offers.engine.close()


def stats_of(world: DiskWorld) -> TransferStats:
    stats = world.engine.transfer_stats
    assert stats is not None
    return stats


def compute(offers: DiskWorld, asks: DiskWorld, sharing: SharingTerms = OPEN) -> None:
    """Let one engine compute the prompt, and the other know of it."""
    offers.add(ask("first", PROMPT, num_outputs=1, sharing=sharing))
    offers.run()
    num_blocks = offers.store.num_blocks
    eventually(lambda: stats_of(asks).num_offered_blocks == num_blocks)


def num_found(world: DiskWorld, name: str, sharing: SharingTerms = OPEN) -> int:
    """Ask for the prompt; the text must be right."""
    new = ask(name, PROMPT, sharing=sharing)
    world.add(new)
    world.run()
    assert world.tokens_of(name) == alone(ask("", PROMPT))
    return world.num_cached(name)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_engine_has_what_another_computed(tmp_path: Path, shape: Shape) -> None:
    with two_worlds(tmp_path, shape) as (offers, asks, _):
        compute(offers, asks)
        new = ask("a", PROMPT)
        asks.add(new)
        asks.run()
        assert asks.tokens_of("a") == alone(new, shape.layers)
        assert asks.num_cached("a") == 28
        reasons = asks.reasons("a")
        assert Reason.LOADED_FROM_PEER in reasons and Reason.LOADED_FROM_DISK not in reasons
        assert asks.scheduler.stats.num_peer_hits == 28
        assert asks.scheduler.stats.num_disk_hits == 0
        assert stats_of(asks).num_loaded_tokens == 28
        eventually(lambda: stats_of(offers).num_sent == stats_of(asks).num_received)
        assert stats_of(asks).num_received > 0


def test_what_the_folder_has_is_not_asked_for(tmp_path: Path) -> None:
    """It has the first half, read in first; the other engine has the rest."""
    with two_worlds(tmp_path, SHAPE) as (offers, asks, _):
        asks.add(ask("half", PROMPT[:14]))
        asks.run()
        compute(offers, asks)
        asks.scheduler.reset_prefix_cache()
        assert num_found(asks, "a") == 28
        reasons = asks.reasons("a")
        assert reasons.index(Reason.LOADED_FROM_DISK) < reasons.index(Reason.LOADED_FROM_PEER)
        assert asks.scheduler.stats.num_disk_hits == 12
        assert asks.scheduler.stats.num_peer_hits == 16


@pytest.mark.parametrize(("salt", "num_tokens"), [(b"mine", 28), (b"other", 8)])
def test_a_salted_block_is_sent_to_its_tenant_alone(
    tmp_path: Path, salt: bytes, num_tokens: int
) -> None:
    """Eight tokens are public: these are all that another tenant has of another engine."""
    with two_worlds(tmp_path, SHAPE) as (offers, asks, _):
        compute(offers, asks, SharingTerms(b"mine", num_public_tokens=8))
        assert num_found(asks, "a", SharingTerms(salt, num_public_tokens=8)) == num_tokens


def test_a_cut_connection_is_a_miss(tmp_path: Path) -> None:
    with two_worlds(tmp_path, SHAPE) as (offers, asks, proxy):
        compute(offers, asks)
        asks.add(ask("a", PROMPT))
        proxy.cut()
        asks.run()
        assert asks.tokens_of("a") == alone(ask("", PROMPT))
        assert num_found(asks, "b") == 28  # by itself


def test_an_engine_that_hangs_holds_nobody(tmp_path: Path) -> None:
    """The request that was asking computes; those after it do not ask."""
    with two_worlds(tmp_path, SHAPE) as (offers, asks, proxy):
        compute(offers, asks)
        proxy.hold()
        asks.add(ask("asks", PROMPT))
        asks.add(ask("passes", PROMPT[::-1]))
        while not asks.deltas["passes"]:
            asks.step()
        assert not asks.deltas["asks"]
        asks.run()
        assert asks.tokens_of("asks") == alone(ask("", PROMPT))
        assert asks.num_cached("asks") == 0
        assert Reason.WAITS_FOR_PEER in asks.reasons("asks")
        assert stats_of(asks).num_failed == 1


def test_a_damaged_block_ends_what_is_had(tmp_path: Path) -> None:
    with two_worlds(tmp_path, SHAPE) as (offers, asks, _):
        compute(offers, asks)
        for path in extents_of(tmp_path / "offers"):
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
        found = num_found(asks, "a")
        assert 0 < found < 28
        assert stats_of(asks).num_corrupt == 1


def test_a_reset_makes_what_others_have_unfindable(tmp_path: Path) -> None:
    with two_worlds(tmp_path, SHAPE) as (offers, asks, _):
        compute(offers, asks)
        asks.engine.reset_prefix_cache()
        assert num_found(asks, "a") == 0


def test_a_request_that_is_aborted_while_it_asks_leaves_nothing(tmp_path: Path) -> None:
    with two_worlds(tmp_path, SHAPE) as (offers, asks, _):
        compute(offers, asks)
        asks.add(ask("a", PROMPT))
        asks.abort("a")
        assert num_found(asks, "b") == 28
        assert asks.cache.usage.active == 0
