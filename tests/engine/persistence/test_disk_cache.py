"""Toy engines that share a folder: what one computed the next one loads, and every text is what the
oracle says.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from quire.cache.sharing import SharingTerms
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.scheduler.reasons import Reason
from quire.storage.disk.extent_file import read_extent
from tests.engine.persistence.disk_world import SLOW, ask, disk_world, eventually
from tests.engine.toy_engine import Shape, alone

SHAPE = Shape(
    block_size=4,
    num_blocks=40,
    max_num_seqs=4,
    max_num_batched_tokens=16,
    caches_prefixes=True,
    watermark=0.0,
    late=False,
)
WINDOW = AttentionPattern(AttentionType.SLIDING, 6)
CHUNKS = AttentionPattern(AttentionType.CHUNKED, 8)
SHAPES = {
    "full": SHAPE,
    "late": replace(SHAPE, late=True),
    "window": replace(SHAPE, layers=(WINDOW, WINDOW)),
    "hybrid": replace(SHAPE, layers=(FULL, WINDOW, WINDOW, CHUNKS)),
    "hosted": replace(SHAPE, num_host_blocks=20, num_blocks=14),
    "tight": replace(SHAPE, num_blocks=13),
}
PROMPT = tuple(number * 7 % 24 for number in range(30))


def extents_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9a-f]*/*/*.kv"))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_engine_loads_what_another_computed(tmp_path: Path, shape: Shape) -> None:
    new = ask("a", PROMPT)
    with disk_world(tmp_path, shape) as world:
        world.add(new)
        world.run()
        assert world.tokens_of("a") == alone(new, shape.layers)
        assert Reason.WAITS_FOR_DISK not in world.reasons("a")
    assert extents_of(tmp_path)
    with disk_world(tmp_path, shape) as world:
        world.add(new)
        world.run()
        assert world.tokens_of("a") == alone(new, shape.layers)
        assert world.num_cached("a") == 28
        assert Reason.LOADED_FROM_DISK in world.reasons("a")
        assert world.store.stats.num_loaded_tokens == 28
        assert world.scheduler.stats.num_disk_hits == 28
        assert world.store.stats.num_written <= 2 * len(shape.layers)  # what it sampled, at most


def test_a_prompt_that_memory_has_in_part_loads_the_rest(tmp_path: Path) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT))
        world.run()
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("half", PROMPT[:14]))
        world.run()
        assert world.num_cached("half") == 12
        world.add(ask("whole", PROMPT))
        world.run()
        assert world.num_cached("whole") == 28
        assert world.store.stats.num_loaded_tokens == 28
        assert world.tokens_of("whole") == alone(ask("whole", PROMPT))


def test_a_load_that_costs_more_than_computing_is_left(tmp_path: Path) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT))
        world.run()
    with disk_world(tmp_path, SHAPE) as world:
        world.slowness = 1 / SLOW
        world.add(ask("half", PROMPT[:14]))
        world.run()
        assert world.num_cached("half") == 12
        world.add(ask("whole", PROMPT))
        world.run()
        assert world.num_cached("whole") == 12
        assert world.store.stats.num_declined == 4
        assert world.tokens_of("whole") == alone(ask("whole", PROMPT))


def test_two_requests_for_one_prefix_read_it_once(tmp_path: Path) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT))
        world.run()
    with disk_world(tmp_path, SHAPE) as world:
        names = ("a", "b", "c")
        for name in names:
            world.add(ask(name, PROMPT))
        world.run()
        assert [world.num_cached(name) for name in names] == [28] * 3
        assert world.store.stats.num_read == 7
        assert world.store.stats.num_loaded_tokens == 28


def test_a_request_that_is_aborted_while_it_waits_leaves_nothing(tmp_path: Path) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT))
        world.run()
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT))
        world.abort("a")
        world.add(ask("b", PROMPT[1:]))
        world.run()
        assert world.tokens_of("b") == alone(ask("b", PROMPT[1:]))
        assert world.cache.usage.active == 0
        world.add(ask("c", PROMPT))
        world.run()
        assert world.tokens_of("c") == alone(ask("c", PROMPT))


@pytest.mark.parametrize("damaged", [0, 3, 6])
def test_a_damaged_block_is_computed_and_written_again(tmp_path: Path, damaged: int) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT, num_outputs=1))
        world.run()
        chain = world.cache.open_table().chain
        chain.extend(PROMPT)
    extents = {path: read_extent(str(path), path.name) for path in extents_of(tmp_path)}
    key = chain.digests[damaged]
    (path,) = (path for path, extent in extents.items() if extent and key in extent.keys)
    extent = extents[path]
    assert extent is not None
    content = bytearray(path.read_bytes())
    content[extent.row_offset(extent.keys.index(key))] ^= 1
    path.write_bytes(content)
    for num_cached in (4 * damaged, 28):
        with disk_world(tmp_path, SHAPE) as world:
            world.add(ask("a", PROMPT))
            world.run()
            assert world.tokens_of("a") == alone(ask("a", PROMPT))
            assert world.num_cached("a") == num_cached
            assert world.store.stats.num_corrupt == (num_cached < 28)


def test_a_block_that_has_vanished_is_computed(tmp_path: Path) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT))
        world.run()
    with disk_world(tmp_path, SHAPE) as world:
        for path in extents_of(tmp_path):
            path.unlink()
        world.add(ask("a", PROMPT))
        world.run()
        assert world.tokens_of("a") == alone(ask("a", PROMPT))
        assert world.num_cached("a") == 0


def test_another_fingerprint_finds_nothing(tmp_path: Path) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT))
        world.run()
    with disk_world(tmp_path, SHAPE, fingerprint=bytes(32)) as world:
        world.add(ask("a", PROMPT))
        world.run()
        assert world.num_cached("a") == 0
    assert len(list(tmp_path.glob("*"))) == 2


def test_a_salted_block_is_for_its_tenant_alone(tmp_path: Path) -> None:
    """Eight tokens are public: these are all that another tenant finds."""
    mine, other = (SharingTerms(salt, num_public_tokens=8) for salt in (b"mine", b"other"))
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT, sharing=mine))
        world.run()
    assert all(b"mine" not in path.read_bytes() for path in extents_of(tmp_path))
    for sharing, num_cached in ((other, 8), (SharingTerms(), 8), (mine, 28)):
        with disk_world(tmp_path, SHAPE) as world:
            world.add(ask("a", PROMPT, sharing=sharing))
            world.run()
            assert world.num_cached("a") == num_cached
            assert world.tokens_of("a") == alone(ask("a", PROMPT))


def test_replicas_find_what_each_other_writes(tmp_path: Path) -> None:
    with disk_world(tmp_path, SHAPE) as first, disk_world(tmp_path, SHAPE) as second:
        first.add(ask("a", PROMPT))
        first.run()
        second.store.rescan()
        second.add(ask("a", PROMPT))
        second.run()
        assert second.num_cached("a") == 28
        first.engine.reset_prefix_cache()
        second.engine.reset_prefix_cache()
        first.add(ask("b", PROMPT))
        first.run()
        assert first.num_cached("b") == 0


def test_a_reset_makes_all_unfindable(tmp_path: Path) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT))
        world.run()
        world.add(ask("b", PROMPT[::-1]))
        world.engine.step()
        world.engine.reset_prefix_cache()
        assert extents_of(tmp_path) == []
        world.add(ask("c", PROMPT))
        world.run()
        assert world.num_cached("c") == 0
        assert world.tokens_of("b") == alone(ask("b", PROMPT[::-1]))
    with disk_world(tmp_path, SHAPE) as world:
        world.store.rescan()
        assert not list(tmp_path.glob(".trash-*"))
        assert world.store.num_blocks == 8  # those of c, computed after the reset, and none of b


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    with disk_world(folder, SHAPE) as world:
        os.rmdir(folder)
        folder.write_text("no folder")
        world.add(ask("a", PROMPT))
        world.run()
        assert world.tokens_of("a") == alone(ask("a", PROMPT))
        stats = world.store.stats
        assert stats.is_paused and stats.num_failed > 0 and stats.num_written == 0
        assert stats.num_failed + stats.num_dropped == 8


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT))
        world.run()
        num_bytes = world.store.stats.num_bytes
    max_bytes = 2 * num_bytes
    with disk_world(tmp_path, SHAPE, max_bytes=max_bytes) as world:
        for number in range(12):
            prompt = tuple((token + number) % 24 for token in PROMPT)
            world.add(ask(str(number), prompt))
            world.run()
        world.run()
        held = sum(path.stat().st_size for path in extents_of(tmp_path))
        assert held <= max_bytes
        assert world.store.stats.num_bytes == held
        assert world.store.stats.num_evicted > 0


def test_blocks_of_a_request_that_was_not_finite_are_found_by_no_other_engine(
    tmp_path: Path,
) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("other", PROMPT[::-1]))
        world.run()
        others = extents_of(tmp_path)
        world.add(ask("bad", PROMPT, num_outputs=2))
        while not world.tokens_of("bad"):
            world.step()
        world.disk.end("bad", is_finite=False)
        world.run()
        eventually(lambda: extents_of(tmp_path) == others)


def test_outputs_are_loaded_for_the_next_turn(tmp_path: Path) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT[:20], num_outputs=12))
        world.run()
        outputs = world.tokens_of("a")
    with disk_world(tmp_path, SHAPE) as world:
        assert world.store.num_blocks == 7
        turn = (*PROMPT[:20], *outputs, 3, 4)
        world.add(ask("b", turn))
        world.run()
        assert world.num_cached("b") == 28
        assert world.tokens_of("b") == alone(ask("b", turn))


def test_what_a_kill_left_half_written_is_deleted(tmp_path: Path) -> None:
    with disk_world(tmp_path, SHAPE) as world:
        world.add(ask("a", PROMPT))
        world.run()
    path = extents_of(tmp_path)[0]
    left = path.with_name(f".{path.stem}.{'0' * 16}.tmp")
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    with disk_world(tmp_path, SHAPE):
        eventually(lambda: not left.exists())
