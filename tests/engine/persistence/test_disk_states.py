"""Toy engines with recurrent layers that share a folder: a prefix is loaded up to a state, its
blocks with it, and every text is what the oracle says.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quire.cache.admission import BlockFinder, ComputedBlocks
from quire.cache.block_hash import STATE_GROUP, group_key
from quire.cache.chain import Chain, Content
from quire.cache.spec import FULL
from quire.cache.states.policy import SnapshotPolicy
from quire.cache.states.state_cache import StateCache
from quire.cache.transfers import Transfers
from quire.scheduler.reasons import Reason
from quire.storage.disk import extent_file
from quire.storage.disk.extent_file import read_extent
from tests.engine.persistence.disk_world import DiskWorld, ask, disk_world, eventually
from tests.engine.persistence.test_disk_cache import PROMPT, SHAPE, WINDOW, extents_of
from tests.engine.persistence.test_peers import stats_of, two_worlds
from tests.engine.toy_engine import Shape, alone

STATES = replace(
    SHAPE, layers=(None, FULL), num_states=12, snapshots=SnapshotPolicy(ladder=0, interval=8)
)
"""A state after every 8 tokens, and at the ends of prompts and outputs."""
ALONE = replace(STATES, layers=(None, None), num_blocks=1)
SHAPES = {
    "beside attention": STATES,
    "late": replace(STATES, late=True),
    "beside a window": replace(STATES, layers=(FULL, None, WINDOW)),
    "hosted": replace(STATES, num_host_blocks=20, num_blocks=14, num_host_states=4),
    "alone": ALONE,
}


def run(
    world: DiskWorld,
    name: str,
    shape: Shape,
    prompt: tuple[int, ...] = PROMPT,
    num_outputs: int = 4,
) -> int:
    """Ask for a prompt, whose text must be right; return how many of its tokens were found."""
    new = ask(name, prompt, num_outputs=num_outputs)
    world.add(new)
    world.run()
    assert world.tokens_of(name) == alone(new, shape.layers)
    assert world.cache.usage.active == world.cache.state_usage.active == 0
    return world.num_cached(name)


def keys_of(world: DiskWorld, prompt: tuple[int, ...], group: int = STATE_GROUP) -> list[bytes]:
    """The keys of the prompt's blocks, or of the states after them."""
    chain = world.cache.open_table().chain
    chain.extend(prompt)
    return [group_key(digest, group) for digest in chain.digests]


def num_blocks_of_states(world: DiskWorld, prompt: tuple[int, ...]) -> list[int]:
    """How many blocks are before each of the prompt's states that the folder holds."""
    keys = keys_of(world, prompt)
    return [number for number, key in enumerate(keys, 1) if world.store.has(key)]


def spoil(folder: Path, key: bytes) -> None:
    """Change a byte of what is stored under a key."""
    for path in extents_of(folder):
        extent = read_extent(str(path), path.name)
        if extent is not None and key in extent.keys:
            content = bytearray(path.read_bytes())
            content[extent.row_offset(extent.keys.index(key))] ^= 1
            path.write_bytes(content)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_engine_loads_the_states_that_another_computed(tmp_path: Path, shape: Shape) -> None:
    with disk_world(tmp_path, shape) as world:
        assert run(world, "a", shape) == 0
        assert num_blocks_of_states(world, PROMPT) == [2, 4, 6, 7]
    with disk_world(tmp_path, shape) as world:
        assert run(world, "a", shape) == 28
        assert Reason.LOADED_FROM_DISK in world.reasons("a")
        assert world.store.stats.num_loaded_tokens == 28
        assert world.scheduler.stats.num_disk_hits == 28
        num_groups = len(world.cache.transfers.groups) - 1
        assert world.store.stats.num_read <= 7 * num_groups + 1, "one state, and no more"
        assert run(world, "b", shape) == 28
        assert world.store.stats.num_loaded_tokens == 28


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_prompt_that_parts_goes_on_from_the_last_state_before(
    tmp_path: Path, shape: Shape
) -> None:
    """Blocks beyond that state are of no use, and not read."""
    with disk_world(tmp_path, shape) as world:
        run(world, "a", shape)
    with disk_world(tmp_path, shape) as world:
        assert run(world, "b", shape, (*PROMPT[:22], 1, 2, 3)) == 16
        num_groups = len(world.cache.transfers.groups) - 1
        assert world.store.stats.num_read <= 4 * num_groups + 1
        assert run(world, "c", shape, PROMPT[:7]) == 0
        assert world.store.stats.num_loaded_tokens == 16


def test_the_state_of_an_output_is_written_at_its_end(tmp_path: Path) -> None:
    """States on the way to the folder are superseded."""
    shape = replace(STATES, snapshots=SnapshotPolicy(ladder=0))
    with disk_world(tmp_path, shape) as world:
        run(world, "a", shape, PROMPT[:13], num_outputs=20)
        text = (*PROMPT[:13], *world.tokens_of("a"))
        assert num_blocks_of_states(world, text) == [3, 8]
    with disk_world(tmp_path, shape) as world:
        assert run(world, "b", shape, (*text, 3, 4)) == 32


def test_the_rungs_of_a_ladder_are_written_when_somebody_goes_on_from_them(tmp_path: Path) -> None:
    shape = replace(STATES, snapshots=SnapshotPolicy(ladder=16))
    with disk_world(tmp_path, shape) as world:
        run(world, "a", shape)
        assert num_blocks_of_states(world, PROMPT) == [7]
        assert run(world, "b", shape, (*PROMPT[:22], 1, 2, 3)) == 20
        assert num_blocks_of_states(world, PROMPT) == [5, 7]


@pytest.mark.parametrize("shape", [STATES, ALONE], ids=["beside attention", "alone"])
def test_a_damaged_state_is_passed_by_and_written_again(tmp_path: Path, shape: Shape) -> None:
    with disk_world(tmp_path, shape) as world:
        run(world, "a", shape, num_outputs=1)
        states = keys_of(world, PROMPT)
    spoil(tmp_path, states[6])
    spoil(tmp_path, states[5])
    for num_cached, num_corrupt in ((16, 2), (28, 0)):
        with disk_world(tmp_path, shape) as world:
            assert run(world, "a", shape) == num_cached
            assert world.store.stats.num_corrupt == num_corrupt


def test_a_damaged_block_leaves_the_states_before_it(tmp_path: Path) -> None:
    with disk_world(tmp_path, STATES) as world:
        run(world, "a", STATES, num_outputs=1)
        blocks = keys_of(world, PROMPT, group=0)
    spoil(tmp_path, blocks[4])
    for num_cached in (16, 28):
        with disk_world(tmp_path, STATES) as world:
            assert run(world, "a", STATES) == num_cached


def test_without_a_state_no_block_is_read(tmp_path: Path) -> None:
    with disk_world(tmp_path, STATES) as world:
        run(world, "a", STATES, num_outputs=1)
        world.store.drop(keys_of(world, PROMPT))
    with disk_world(tmp_path, STATES) as world:
        assert run(world, "a", STATES) == 0
        assert world.store.stats.num_read == 0
        assert world.store.stats.num_misses == 7


def test_blocks_that_memory_lacks_are_loaded_for_a_state_that_it_has(tmp_path: Path) -> None:
    shape = replace(STATES, num_blocks=13)
    with disk_world(tmp_path, shape) as world:
        run(world, "a", shape)
        run(world, "b", shape, PROMPT[::-1])
        assert run(world, "a again", shape) == 28
        assert world.store.stats.num_loaded_tokens > 0


@pytest.mark.parametrize("num_states", [2, 3])
def test_a_load_for_which_no_state_is_free_is_declined(tmp_path: Path, num_states: int) -> None:
    """With one state in all there is none beside that of the request; with two another runs."""
    with disk_world(tmp_path, STATES) as world:
        run(world, "a", STATES)
    shape = replace(STATES, num_states=num_states)
    with disk_world(tmp_path, shape) as world:
        world.add(ask("runs", PROMPT[::-1], num_outputs=9))
        world.step()
        assert run(world, "a", shape) == 0
        assert world.store.stats.num_declined == 7
        assert world.store.stats.num_loaded_tokens == 0
        assert run(world, "again", shape) == (28 if num_states > 2 else 0)


def test_requests_for_one_prefix_read_it_once(tmp_path: Path) -> None:
    with disk_world(tmp_path, STATES) as world:
        run(world, "a", STATES)
    with disk_world(tmp_path, STATES) as world:
        names = ("a", "b", "c")
        for name in names:
            world.add(ask(name, PROMPT))
        world.run()
        assert [world.num_cached(name) for name in names] == [28] * 3
        assert world.store.stats.num_read == 8


def test_a_reset_makes_states_unfindable(tmp_path: Path) -> None:
    with disk_world(tmp_path, ALONE) as world:
        run(world, "a", ALONE)
        world.engine.reset_prefix_cache()
        assert extents_of(tmp_path) == []
        assert run(world, "b", ALONE) == 0


def test_states_of_a_request_that_was_not_finite_are_erased(tmp_path: Path) -> None:
    with disk_world(tmp_path, STATES) as world:
        world.add(ask("bad", PROMPT, num_outputs=2))
        while not world.tokens_of("bad"):
            world.step()
        world.disk.end("bad", is_finite=False)
        world.run()
        eventually(lambda: extents_of(tmp_path) == [])


def test_a_small_folder_is_bounded(tmp_path: Path) -> None:
    max_bytes = 3000
    with disk_world(tmp_path, STATES, max_bytes=max_bytes) as world:
        for number in range(6):
            prompt = tuple((token + number) % 24 for token in PROMPT)
            run(world, str(number), STATES, prompt)
        assert world.store.stats.num_evicted > 0
        assert sum(path.stat().st_size for path in extents_of(tmp_path)) <= max_bytes


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_engines_send_each_other_states(tmp_path: Path, shape: Shape) -> None:
    """The content of the other folder is in both then."""
    with two_worlds(tmp_path, shape) as (offers, asks, _):
        run(offers, "first", shape, num_outputs=1)
        num_blocks = offers.store.num_blocks
        eventually(lambda: stats_of(asks).num_offered_blocks == num_blocks)
        assert run(asks, "a", shape) == 28
        assert Reason.LOADED_FROM_PEER in asks.reasons("a")
        assert asks.scheduler.stats.num_peer_hits == 28
        assert 7 in num_blocks_of_states(asks, PROMPT)


def test_a_damaged_state_of_a_peer_is_passed_by(tmp_path: Path) -> None:
    with two_worlds(tmp_path, STATES) as (offers, asks, _):
        run(offers, "first", STATES, num_outputs=1)
        num_blocks = offers.store.num_blocks
        eventually(lambda: stats_of(asks).num_offered_blocks == num_blocks)
        spoil(tmp_path / "offers", keys_of(offers, PROMPT)[6])
        assert run(asks, "a", STATES) == 24
        assert stats_of(asks).num_corrupt == 1


def takes_damaged_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extent_file, "is_whole", lambda block, entry: True)


def loads_a_state_for_the_block_before(monkeypatch: pytest.MonkeyPatch) -> None:
    load = StateCache.load

    def early(cache: StateCache, chain: Chain, num_blocks: int) -> int | None:
        return load(cache, chain, max(num_blocks - 1, 1))

    monkeypatch.setattr(StateCache, "load", early)


def writes_the_state_of_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row under a key is that of the snapshot before."""
    row_of = Transfers.row_of

    def careless(transfers: Transfers, content: Content, group: int) -> int | None:
        found = row_of(transfers, content, group)
        if group != STATE_GROUP or found is None or content.parent is None:
            return found
        return row_of(transfers, content.parent, group) or found

    monkeypatch.setattr(Transfers, "row_of", careless)


def finds_blocks_without_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(
        finder: BlockFinder, _: StateCache, chain: Chain, max_blocks: int, *, use_host: bool
    ) -> ComputedBlocks:
        return finder.prefix(chain, max_blocks, use_host=use_host)

    monkeypatch.setattr(BlockFinder, "prefix_with_state", trusting)


@pytest.mark.parametrize(
    ("plant", "is_spoilt"),
    [
        (takes_damaged_rows, True),
        (loads_a_state_for_the_block_before, False),
        (writes_the_state_of_another_place, False),
        (finds_blocks_without_their_state, False),
    ],
)
def test_planted_fault_of_stored_states_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    is_spoilt: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Without a fault that is what the tests of loads and of damage do."""
    plant(monkeypatch)
    with disk_world(tmp_path, STATES) as world:
        run(world, "a", STATES)
        if is_spoilt:
            spoil(tmp_path, keys_of(world, PROMPT)[6])
    with disk_world(tmp_path, STATES) as world, pytest.raises(AssertionError):
        run(world, "a", STATES)
        run(world, "b", STATES, (*PROMPT[:25], 1, 2))
