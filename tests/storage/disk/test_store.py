"""A store of blocks: what is got is what was put, or a miss, whatever happens to the folder."""

import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quire.storage.disk.block_header import CHECKSUM_BYTES, header_of
from quire.storage.disk.extent_file import HEAD_BYTES
from quire.storage.disk.files import open_folder
from quire.storage.disk.store import BlockStore
from tests.storage.disk.blocks import (
    FINGERPRINT,
    ROW_BYTES,
    files_of,
    get,
    get_all,
    identity,
    put,
    row,
)

NUMBERS = st.integers(0, 39)
RUNS = st.integers(1, 8)
ENTRY_BYTES = len(header_of(FINGERPRINT, identity(0), ROW_BYTES)) + CHECKSUM_BYTES
FILE_BYTES = HEAD_BYTES + ENTRY_BYTES + ROW_BYTES
"""The bytes of an extent of one block."""
MAX_BLOCKS = 24
MAX_BYTES = MAX_BLOCKS * FILE_BYTES
EXTENT = (0, 1, 2, 3)
KINDS = ("flip", "cut", "grow", "swap", "part", "zeros", "drop")


def open_store(folder: Path, fingerprint: bytes = FINGERPRINT) -> BlockStore:
    """A store that has scanned its folder."""
    store = BlockStore(folder, fingerprint, MAX_BYTES)
    store.rescan()
    return store


def damaged(kind: str, content: bytes, other: bytes, chance: random.Random) -> bytes:
    """The content of a file after some damage; `other` is that of another."""
    changed = bytearray(content)
    place, end = sorted(chance.choices(range(len(content) + 1), k=2))
    match kind:
        case "flip":
            changed[min(place, len(content) - 1)] ^= 1 << chance.randrange(8)
        case "cut":
            del changed[place:]
        case "grow":
            changed += b"0"
        case "swap":
            changed[:] = other
        case "part":
            changed[place:end] = other[place:end]
        case "zeros":
            changed[place:end] = bytes(end - place)
    return bytes(changed)


class AnyFolder(RuleBasedStateMachine):
    """Two replicas over one folder that is damaged in every way. A model of it would be the folder
    itself: what is held is that no answer is wrong, and no call raises."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.stores = [open_store(self.folder), open_store(self.folder)]

    @rule(which=st.integers(0, 1), first=NUMBERS, num=RUNS)
    def put_some(self, which: int, first: int, num: int) -> None:
        store, numbers = self.stores[which], range(first, first + num)
        new = [number for number in numbers if not store.has(identity(number).key)]
        assert put(store, *numbers)
        assert all(store.has(identity(number).key) for number in new)

    @rule(which=st.integers(0, 1), first=NUMBERS, num=RUNS)
    def get_some(self, which: int, first: int, num: int) -> None:
        numbers = range(first, first + num)
        found = get_all(self.stores[which], *numbers)
        assert found == [row(number) for number in numbers[: len(found)]]

    @rule(which=st.integers(0, 1), first=NUMBERS, num=RUNS)
    def drop_some(self, which: int, first: int, num: int) -> None:
        keys = [identity(number).key for number in range(first, first + num)]
        self.stores[which].drop(keys)
        assert not any(self.stores[which].has(key) for key in keys)

    @rule(which=st.integers(0, 1))
    def begin_again(self, which: int) -> None:
        self.stores[which] = open_store(self.folder)

    @rule(which=st.integers(0, 1))
    def rescan(self, which: int) -> None:
        self.stores[which].rescan()
        held = sum(path.stat().st_size for path in files_of(self.folder))
        assert self.stores[which].stats.num_bytes == held <= MAX_BYTES

    @rule(which=st.integers(0, 1))
    def reset(self, which: int) -> None:
        self.stores[which].reset()
        assert files_of(self.folder) == []
        assert all(get(self.stores[which], number) is None for number in range(48))

    @rule(seed=st.integers(0, 1 << 30), kind=st.sampled_from(KINDS))
    def damage(self, seed: int, kind: str) -> None:
        files = files_of(self.folder)
        if not files:
            return
        chance = random.Random(seed)
        path, other = chance.choice(files), chance.choice(files)
        content = path.read_bytes()
        if kind == "drop" or not content:
            path.unlink()
        else:
            path.write_bytes(damaged(kind, content, other.read_bytes(), chance))

    @rule()
    def lose_all(self) -> None:
        for path in self.folder.iterdir():
            shutil.rmtree(path)

    @invariant()
    def is_bounded(self) -> None:
        for store in self.stores:
            assert store.stats.num_bytes <= MAX_BYTES
            assert store.stats.num_failed == 0

    def teardown(self) -> None:
        self.temporary.cleanup()


TestAnyFolder = AnyFolder.TestCase
TestAnyFolder.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    clock = iter(range(0, 10**6, 1000))
    store = BlockStore(tmp_path, FINGERPRINT, 3 * FILE_BYTES, lambda: float(next(clock)))
    for number in (1, 2, 3):
        assert put(store, number)
    assert get(store, 1) == row(1)
    assert put(store, 4)
    assert [get(store, number) is not None for number in (1, 2, 3, 4)] == [True, False, True, True]
    again = BlockStore(tmp_path, FINGERPRINT, 2 * FILE_BYTES)
    again.rescan()
    assert again.num_blocks == 2 == len(files_of(tmp_path))


def test_extents_go_as_a_whole_and_are_of_use_as_a_whole(tmp_path: Path) -> None:
    now = [1000.0]
    store = BlockStore(tmp_path, FINGERPRINT, MAX_BYTES, lambda: now[0])
    for first in range(0, 18, 3):
        now[0] += 100.0
        assert put(store, first, first + 1, first + 2)
    now[0] += 100.0
    assert get(store, 1) == row(1)
    for number in range(20, 28):
        assert put(store, number)
    held = [number for number in range(18) if store.has(identity(number).key)]
    assert held == [0, 1, 2, *range(6, 18)]
    assert store.stats.num_evicted == 3
    assert get_all(store, 0, 1, 2) == [row(0), row(1), row(2)]


def test_a_long_run_is_several_extents(tmp_path: Path) -> None:
    """An extent takes at most a quarter of what the folder may hold."""
    store = open_store(tmp_path)
    numbers = range(18)
    assert put(store, *numbers)
    assert len(files_of(tmp_path)) == 3
    assert max(path.stat().st_size for path in files_of(tmp_path)) <= MAX_BYTES / 4 + FILE_BYTES
    assert get_all(store, *numbers) == [row(number) for number in numbers]
    assert get_all(store, 5, 17, 3, 4) == [row(number) for number in (5, 17, 3, 4)]
    assert store.stats.num_read == store.stats.num_written + 4 == 22
    assert get_all(store, 5, 30, 6) == [row(5)]


@pytest.mark.parametrize("field", range(1, 4))
def test_a_block_of_another_identity_is_a_miss(tmp_path: Path, field: int) -> None:
    """The right key is not enough: tokens, tenant and parent must be the same."""
    store = open_store(tmp_path)
    asked = identity(1)
    held = asked._replace(**{asked._fields[field]: identity(2)[field][:-1] + b"\xff"})
    assert store.put([held, identity(2)], [memoryview(row(1)), memoryview(row(2))], store.epoch)
    assert store.has(asked.key)
    assert get(store, 1) is None and not store.has(asked.key)
    assert get(open_store(tmp_path), 1) is None
    assert get(open_store(tmp_path), 2) == row(2)


def test_another_model_shares_the_folder_and_nothing_else(tmp_path: Path) -> None:
    mine, other = open_store(tmp_path), open_store(tmp_path, bytes(32))
    assert put(mine, 1, 2)
    assert get(other, 1) is None
    (path,) = files_of(tmp_path)
    copied = tmp_path / bytes(16).hex() / path.parent.name / path.name
    copied.parent.mkdir(parents=True)
    shutil.copyfile(path, copied)
    other.rescan()
    assert other.num_blocks == 4 and other.has(identity(1).key)
    assert get(other, 1) is None
    assert get(mine, 1) == row(1)


def test_dropped_blocks_are_found_by_nobody(tmp_path: Path) -> None:
    """A replica that knows of them misses them, and what is beside them is found by all."""
    store = open_store(tmp_path)
    put(store, *EXTENT)
    replica = open_store(tmp_path)
    store.drop([identity(1).key, identity(2).key, identity(9).key])
    for each in (store, replica, open_store(tmp_path)):
        assert [get(each, number) for number in EXTENT] == [row(0), None, None, row(3)]
        assert each.stats.num_corrupt == 0 and each.num_blocks == 2
    open_store(tmp_path).drop([identity(0).key, identity(3).key])
    assert files_of(tmp_path) == []
    assert get(store, 0) is None
    store.rescan()
    assert store.num_blocks == 0 == store.stats.num_bytes


@pytest.mark.parametrize("lost", [(0, 1, 2), (2, 3, 4)])
def test_a_block_in_two_extents_is_found_while_one_is_there(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    """Replicas that have not seen each other's extents write some blocks twice."""
    for numbers in ((0, 1, 2), (2, 3, 4)):
        put(BlockStore(tmp_path, FINGERPRINT, MAX_BYTES), *numbers)
    store = open_store(tmp_path)
    assert len(files_of(tmp_path)) == 2 and get(store, 2) == row(2)
    (path,) = (each for each in files_of(tmp_path) if row(lost[1]) in each.read_bytes())
    path.unlink()
    store.rescan()
    left = [number for number in range(5) if get(store, number) is not None]
    assert left == sorted({*range(5)} - {*lost} | {2})
    store.drop([identity(2).key])
    assert get(open_store(tmp_path), 2) is None


def test_what_is_no_extent_is_deleted_where_it_is_of_this_model(tmp_path: Path) -> None:
    """Another version may know what to do with its own; it counts for the bound."""
    names = [f"{model.hex()}/a/{'ab' * 16}.kv" for model in (FINGERPRINT[:16], bytes(16))]
    for name, content in zip(names, (b"junk" * 50, b"junk" * 60), strict=True):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, (1000, 1000))
    store = open_store(tmp_path)
    assert not (tmp_path / names[0]).exists() and (tmp_path / names[1]).exists()
    assert store.stats.num_corrupt == 1
    assert (store.num_blocks, store.stats.num_bytes) == (1, 240)
    for number in range(MAX_BLOCKS):
        put(store, number)
    assert not (tmp_path / names[1]).exists()


def test_what_belongs_to_others_is_left_alone(tmp_path: Path) -> None:
    names = ("notes.txt", ".hidden", f"{'a' * 32}/a/notes.txt", f"{'a' * 32}/readme", "ab/x.kv")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
        os.utime(tmp_path / name, (0, 0))
    store = open_store(tmp_path)
    for number in range(2 * MAX_BLOCKS):
        put(store, number)
    store.rescan()
    assert store.stats.num_evicted > 0
    store.reset()
    assert all((tmp_path / name).read_text() == "mine" for name in names)


def test_files_and_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    open_folder(folder)
    store = open_store(folder)
    put(store, 1)
    (path,) = files_of(folder)
    assert path.stat().st_mode & 0o777 == 0o600
    assert {each.stat().st_mode & 0o777 for each in (folder, *path.parents[:2])} == {0o700}


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """The kernel refuses what is written beyond `num_bytes` of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_counted_and_writing_pauses(tmp_path: Path) -> None:
    """A write that is cut short, as on a full disk."""
    now = [1000.0]
    store = BlockStore(tmp_path, FINGERPRINT, 1 << 20, lambda: now[0])
    assert put(store, 1)
    pauses = []
    with largest_file(100):
        for _ in range(10):
            assert not put(store, 2)
            pauses.append(0)
            while store.is_paused:
                pauses[-1] += 1
                now[0] += 1.0
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert store.stats.num_failed == 10
    assert [path.name for path in tmp_path.glob("*/*/.*")] == []
    assert get(store, 1) == row(1) and get(store, 2) is None
    assert put(store, 2) and not store.is_paused
    with largest_file(100):
        assert not put(store, 3)
    now[0] += 1.0
    assert not store.is_paused


def test_a_folder_that_is_removed_while_it_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    folder.mkdir()
    store = open_store(folder)
    put(store, 1)
    shutil.rmtree(folder)
    assert get(store, 1) is None
    assert not put(store, 2)
    assert not folder.exists()
    store.rescan()
    assert store.num_blocks == 0


def lost_by(kind: str, place: int, *, is_running: bool) -> set[int]:
    """The blocks of EXTENT that cannot be read when the byte at `place` is changed, or all from
    there on are missing. A store that has scanned before needs no head."""
    first_row = HEAD_BYTES + len(EXTENT) * ENTRY_BYTES
    rows = {number: first_row + (number + 1) * ROW_BYTES for number in EXTENT}
    if kind == "cut":
        return {number for number, end in rows.items() if place < end}
    if place < HEAD_BYTES:
        return set() if is_running else {*EXTENT}
    if place < first_row:
        return {(place - HEAD_BYTES) // ENTRY_BYTES}
    return {(place - first_row) // ROW_BYTES}


@pytest.mark.parametrize("kind", ["flip", "cut"])
def test_damage_of_any_byte_costs_the_blocks_it_hits(tmp_path: Path, kind: str) -> None:
    """2,000 bit flips and as many cuts, at random places, found by a store that is running or by
    one that begins; the blocks that are lost are not found again."""
    chance = random.Random(kind)
    running = open_store(tmp_path)
    for turn in range(2000):
        assert put(running, *EXTENT)
        (path,) = files_of(tmp_path)
        content = bytearray(path.read_bytes())
        place = chance.randrange(len(content))
        if kind == "flip":
            content[place] ^= 1 << chance.randrange(8)
        else:
            del content[place:]
        path.write_bytes(content)
        is_running = turn % 4 > 0
        store = running if is_running else open_store(tmp_path)
        lost = lost_by(kind, place, is_running=is_running)
        expected = [None if number in lost else row(number) for number in EXTENT]
        assert [get(store, number) for number in EXTENT] == expected
        if not is_running:
            assert [get(open_store(tmp_path), number) for number in EXTENT] == expected
        path.unlink(missing_ok=True)
        running.rescan()
    assert running.stats.num_corrupt > 1000


def test_a_writer_that_is_killed_leaves_whole_blocks_or_none(tmp_path: Path) -> None:
    """`make cache-kills` does so 2,000 times."""
    command = [sys.executable, "-m", "tests.storage.disk.kills", str(tmp_path), "150"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    counts = dict(pair.split("=") for pair in ran.stdout.split())
    assert counts["kills"] == "150" and counts["wrong"] == "0"
    assert int(counts["whole"]) > 0


def test_a_store_needs_no_torch() -> None:
    """The modules that read and write files can be used by tools that have no model."""
    code = "import quire.storage.disk.store, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
