"""Memory that an engine maps for KV blocks while it computes no prompt."""

import psutil
import pytest

from quire.engine.engine import Engine
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.engine.test_optimizations import MODELS, PROMPT, build
from tests.models.kv.test_pages_ahead import can_map_ahead

MODEL = MODELS[1]


def outputs(engine: Engine) -> list[int]:
    """The tokens of a request; memory is mapped after each of its steps."""
    assert engine.submit(NewRequest("0", PROMPT, Sampling(temperature=0.0), Stopping(20))) is None
    token_ids: list[int] = []
    while engine.has_work:
        for delta in engine.step().deltas:
            token_ids += delta.token_ids
        engine.map_pages()
    return token_ids


def test_answers_are_the_same_whenever_memory_is_mapped() -> None:
    lazy, idle = build(MODEL)[0], build(MODEL)[0]
    while idle.map_pages():
        pass
    assert outputs(idle) == outputs(lazy)


@pytest.mark.skipif(not can_map_ahead(), reason="needs Linux 5.14 to map pages ahead")
def test_an_idle_engine_maps_what_comes_next_and_no_more() -> None:
    engine = build(MODEL, kv_cache_tokens=1 << 16)[0]
    before = psutil.Process().memory_info().rss
    num_pages = 0
    while engine.map_pages():
        num_pages += 1
        assert num_pages < 10_000
    assert psutil.Process().memory_info().rss - before > 8 << 20
    assert not engine.map_pages()
