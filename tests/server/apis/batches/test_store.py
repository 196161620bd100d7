"""The directory of files and batches: what a restart keeps, and what expires."""

import io
from pathlib import Path

import pytest

from quire.server.apis.batches.protocol import BatchObject, FileObject
from quire.server.apis.batches.store import (
    BatchStore,
    BatchStoreLimits,
    StoredBatch,
    StoreError,
    open_store,
    output_ids,
)
from quire.server.errors import RequestError

LIMITS = BatchStoreLimits(max_bytes=100, max_files=2, max_batches=1, kept_s=1000)


def file(name: str, expires_at: int = 500) -> FileObject:
    return FileObject(
        id=name, bytes=5, created_at=0, expires_at=expires_at, filename="in", purpose="batch"
    )


def batch(name: str, input_id: str, status: str) -> StoredBatch:
    return StoredBatch(
        "one",
        BatchObject(
            id=name,
            endpoint="/v1/completions",
            input_file_id=input_id,
            completion_window="24h",
            created_at=0,
            expires_at=100,
            status=status,
        ),
        1000,
    )


async def filled(folder: Path) -> BatchStore:
    store = open_store(folder, LIMITS, lambda: 0.0)
    await store.add_file("one", file("a"), io.BytesIO(b"12345"))
    await store.add_file("one", file("b"), io.BytesIO(b"12345"))
    await store.save_batch(batch("batch_1", "a", "in_progress"))
    await store.save_batch(batch("batch_2", "b", "completed"))
    return store


async def test_a_restart_keeps_records_and_the_answers_of_what_runs(tmp_path: Path) -> None:
    store = await filled(tmp_path)
    answers, stray = store.content(output_ids("batch_1")[0]), store.content("file-stray")
    for each in (answers, stray, store.content(output_ids("batch_2")[0])):
        each.write_bytes(b"{}\n")
    (tmp_path / "files" / "torn.tmp").write_bytes(b"{")
    store.close()
    again = open_store(tmp_path, LIMITS, lambda: 0.0)
    assert (again.files, again.batches) == (store.files, store.batches)
    assert answers.exists() and not stray.exists()
    assert {path.name for path in (tmp_path / "files").iterdir()} == {
        *("a.json", "a.jsonl", "b.json", "b.jsonl"),
        answers.name,
    }
    again.close()


async def test_one_server_has_the_directory(tmp_path: Path) -> None:
    store = open_store(tmp_path, LIMITS, lambda: 0.0)
    with pytest.raises(StoreError, match="in use by another server"):
        open_store(tmp_path, LIMITS, lambda: 0.0)
    store.close()
    (tmp_path / "files" / "bad.json").write_bytes(b"{")
    with pytest.raises(StoreError, match=r"bad\.json cannot be read"):
        open_store(tmp_path, LIMITS, lambda: 0.0)


async def test_limits_are_those_of_each_owner(tmp_path: Path) -> None:
    store = await filled(tmp_path)
    with pytest.raises(RequestError, match="keeps 2 files"):
        store.check_room("one", 1)
    with pytest.raises(RequestError, match="may have 100"):
        store.check_room("two", 101)
    store.check_room("two", 100)
    with pytest.raises(RequestError, match="1 unfinished batches"):
        store.check_batches("one")
    store.check_batches("two")
    with pytest.raises(RequestError, match="not finished"):
        await store.delete_file("a")
    store.close()


async def test_what_is_over_its_time_goes_but_not_what_a_batch_reads(tmp_path: Path) -> None:
    store = await filled(tmp_path)
    store.now = lambda: 5000.0
    await store.expire()
    assert set(store.files) == {"a"} and set(store.batches) == {"batch_1"}
    assert not store.content("b").exists() and store.content("a").exists()
    store.close()
