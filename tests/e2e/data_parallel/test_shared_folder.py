"""Engines of one box share a prefix cache on disk: what either has written both have when they
start again."""

from pathlib import Path

import pytest

from tests.e2e.disk_kills import FLAGS, PROMPTS, ask, disk_flags
from tests.e2e.server_process import eventually, server_process

SEVERAL = ("--data-parallel-size", "2")
WRITTEN = 'quire:prefix_disk_blocks_total{engine="0",event="written"'
NUM_BLOCKS = 8


@pytest.mark.long  # what a server has written is had by the next one in every run
def test_what_one_engine_has_written_is_had_by_both(tmp_path: Path) -> None:
    flags = (*SEVERAL, *FLAGS, *disk_flags(tmp_path))
    with server_process(*flags) as server:
        texts = [ask(server, prompt).text for prompt in PROMPTS[:4]]
        assert eventually(lambda: server.metric(WRITTEN) >= NUM_BLOCKS, 20.0)
        assert server.stop() == 0
    with server_process(*flags) as server:
        again = [ask(server, prompt) for prompt in PROMPTS[:4]]
        assert [each.text for each in again] == texts
        assert all(each.num_cached >= NUM_BLOCKS * 8 for each in again)
