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

from quire.cache.persistence.block_file import file_bytes, header_of
from quire.cache.persistence.files import open_folder
from quire.cache.persistence.store import BlockStore
from tests.cache.persistence.blocks import FINGERPRINT, ROW_BYTES, files_of, get, identity, put, row

NUMBERS = st.integers(0, 9)
FILE_BYTES = file_bytes(header_of(FINGERPRINT, identity(0), ROW_BYTES), ROW_BYTES)
MAX_BLOCKS = 5
KINDS = ("flip", "cut", "grow", "swap", "drop")


def open_store(folder: Path, fingerprint: bytes = FINGERPRINT) -> BlockStore:
    """A store that has scanned its folder."""
    store = BlockStore(folder, fingerprint, MAX_BLOCKS * FILE_BYTES)
    store.rescan()
    return store


class AnyFolder(RuleBasedStateMachine):
    """Two replicas over one folder that is damaged in every way. A model of it would be the folder
    itself: what is held is that no answer is wrong, and no call raises."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.stores = [open_store(self.folder), open_store(self.folder)]

    @rule(which=st.integers(0, 1), number=NUMBERS)
    def put_one(self, which: int, number: int) -> None:
        assert put(self.stores[which], number)
        if self.stores[which].stats.num_corrupt == 0:
            assert self.stores[which].has(identity(number).key)

    @rule(which=st.integers(0, 1), number=NUMBERS)
    def get_one(self, which: int, number: int) -> None:
        assert get(self.stores[which], number) in (None, row(number))

    @rule(which=st.integers(0, 1))
    def begin_again(self, which: int) -> None:
        self.stores[which] = open_store(self.folder)

    @rule(which=st.integers(0, 1))
    def rescan(self, which: int) -> None:
        self.stores[which].rescan()
        assert self.stores[which].num_blocks == len(files_of(self.folder)) <= MAX_BLOCKS

    @rule(which=st.integers(0, 1))
    def reset(self, which: int) -> None:
        self.stores[which].reset()
        assert files_of(self.folder) == []
        assert all(get(self.stores[which], number) is None for number in range(10))

    @rule(
        seed=st.integers(0, 1 << 30), kind=st.sampled_from(("flip", "cut", "grow", "swap", "drop"))
    )
    def damage(self, seed: int, kind: str) -> None:
        files = files_of(self.folder)
        if not files:
            return
        chance = random.Random(seed)
        path, other = chance.choice(files), chance.choice(files)
        content = bytearray(path.read_bytes())
        if kind == "flip":
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        elif kind == "cut":
            del content[chance.randrange(len(content)) :]
        elif kind == "grow":
            content += b"0"
        elif kind == "swap":
            content[:] = other.read_bytes()
        if kind == "drop":
            path.unlink()
        else:
            path.write_bytes(content)

    @rule()
    def lose_all(self) -> None:
        for path in self.folder.iterdir():
            shutil.rmtree(path)

    @invariant()
    def is_bounded(self) -> None:
        for store in self.stores:
            assert store.stats.num_bytes <= MAX_BLOCKS * FILE_BYTES
            assert store.stats.num_failed == 0

    def teardown(self) -> None:
        self.temporary.cleanup()


TestAnyFolder = AnyFolder.TestCase
TestAnyFolder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


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


@pytest.mark.parametrize("field", range(4))
def test_a_block_of_another_identity_is_a_miss(tmp_path: Path, field: int) -> None:
    """A file under the right name is not enough: tokens, tenant and parent must be the same."""
    store = open_store(tmp_path)
    asked = identity(1)
    held = asked._replace(**{asked._fields[field]: identity(2)[field][:-1] + b"\xff"})
    assert store.put(held, memoryview(row(1)), store.epoch)
    (path,) = files_of(tmp_path)
    wanted = tmp_path / path.parent.parent.name / asked.key.hex()[:1] / f"{asked.key.hex()}.kv"
    wanted.parent.mkdir(exist_ok=True)
    path.rename(wanted)
    assert get(open_store(tmp_path), 1) is None
    assert not wanted.exists()


def test_another_model_shares_the_folder_and_nothing_else(tmp_path: Path) -> None:
    mine, other = open_store(tmp_path), open_store(tmp_path, bytes(32))
    assert put(mine, 1)
    assert get(other, 1) is None
    (path,) = files_of(tmp_path)
    path.rename(path)  # the same bytes under the other model's name
    copied = tmp_path / bytes(16).hex() / path.parent.name / path.name
    copied.parent.mkdir(parents=True)
    shutil.copyfile(path, copied)
    other.rescan()
    assert other.num_blocks == 2
    assert get(other, 1) is None
    assert get(mine, 1) == row(1)


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


@pytest.mark.parametrize("kind", ["flip", "cut"])
def test_damage_of_any_byte_is_a_miss(tmp_path: Path, kind: str) -> None:
    """2,000 bit flips and as many cuts, at random places of random blocks."""
    chance = random.Random(kind)
    store = open_store(tmp_path)
    for turn in range(2000):
        number = turn % MAX_BLOCKS
        assert put(store, number)
        path = next(tmp_path.glob(f"*/*/{identity(number).key.hex()}.kv"))
        content = bytearray(path.read_bytes())
        place = chance.randrange(len(content))
        if kind == "flip":
            content[place] ^= 1 << chance.randrange(8)
        else:
            del content[place:]
        path.write_bytes(content)
        assert get(store, number) is None
        assert not path.exists()
    assert store.stats.num_corrupt == 2000


def test_a_writer_that_is_killed_leaves_whole_blocks_or_none(tmp_path: Path) -> None:
    """`make cache-kills` does so 2,000 times."""
    command = [sys.executable, "-m", "tests.cache.persistence.kills", str(tmp_path), "150"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    counts = dict(pair.split("=") for pair in ran.stdout.split())
    assert counts["kills"] == "150" and counts["wrong"] == "0"
    assert int(counts["whole"]) > 0


def test_a_block_file_needs_no_torch() -> None:
    """The modules that read and write files can be used by tools that have no model."""
    code = "import quire.cache.persistence.store, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
