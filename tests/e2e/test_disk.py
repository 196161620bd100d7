"""A real server whose prefix cache is on disk: warm after a kill, and never wrong."""

from pathlib import Path

import pytest

from tests.e2e.disk_kills import FLAGS, PROMPTS, ask, check, disk_flags
from tests.e2e.server_process import eventually, server_process

SOURCE = "quire:prompt_tokens_cached_by_source_total{source="


@pytest.mark.long  # an engine that was killed is in every run
@pytest.mark.one_engine
def test_a_server_that_was_killed_is_warm(tmp_path: Path) -> None:
    """As `python -m tests.e2e.disk_kills` does 50 times; the engine alone is killed besides."""
    outcomes = check(num_kills=2, seed=1)
    assert sum(each.num_wrong for each in outcomes) == 0
    assert outcomes[-1].num_texts == len(PROMPTS)


@pytest.mark.one_engine
def test_an_engine_that_was_killed_is_warm(tmp_path: Path) -> None:
    with server_process(*FLAGS, *disk_flags(tmp_path)) as server:
        first = ask(server, PROMPTS[0])
        assert first.num_cached == 0
        held = "quire:prefix_disk_held_blocks"
        assert eventually(lambda: server.metric(held) * 16 >= 64, 20.0)
        before = server.metric(held)
        assert eventually(lambda: server.metric(held) == before, 1.0)
        server.engine_process().kill()
        again = ask(server, PROMPTS[0])
        assert again.text == first.text and again.num_cached >= 64
        assert server.metric(f'{SOURCE}"disk"') == again.num_cached
        assert server.metric(f'{SOURCE}"device"') == 0
        assert server.metric("quire:prompt_tokens_cached_total") == again.num_cached
        reply = server.client.post("/reset_prefix_cache", json={})
        assert reply.status_code == 200
        assert eventually(lambda: server.metric("quire:prefix_disk_held_blocks") == 0, 20.0)
        assert ask(server, PROMPTS[0]).num_cached == 0
