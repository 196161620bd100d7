"""The queue of a writer takes what fits, and a row of any size while it is empty."""

from pathlib import Path

import pytest

from quire.cache.chain import Content
from quire.cache.sharing import NO_KEYS
from quire.storage.disk.store import BlockStore
from quire.storage.disk.write_behind import MAX_BYTES_S, MAX_QUEUED_BYTES, UnsavedBlock, WriteBehind
from tests.engine.persistence.disk_world import PATIENCE_S
from tests.storage.disk.blocks import FINGERPRINT, identity, row


@pytest.mark.parametrize(
    ("row_bytes", "num_rows"),
    [
        (1 << 20, MAX_QUEUED_BYTES >> 20),
        (MAX_QUEUED_BYTES, 1),
        (MAX_QUEUED_BYTES + 1, 1),
        (2 * MAX_BYTES_S, 1),
    ],
)
def test_an_empty_queue_takes_a_row_of_any_size(
    tmp_path: Path, row_bytes: int, num_rows: int
) -> None:
    """What is taken counts against the rate, by a clock that stands: a row that takes all of it
    waits then."""
    writer = WriteBehind(BlockStore(tmp_path, FINGERPRINT, 1 << 20), lambda: 100.0)
    assert writer.num_rows(row_bytes) == num_rows
    content = Content(identity(1).key, identity(1).tokens, NO_KEYS, None)
    writer.offer([UnsavedBlock(identity(1), content, memoryview(row(1)))])
    assert writer.wait_until_written(PATIENCE_S)
    assert writer.num_rows(row_bytes) == (num_rows if row_bytes < MAX_BYTES_S else 0)
    writer.close()
