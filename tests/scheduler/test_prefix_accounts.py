"""What a request is told of its prefix, and what is counted: hits, misses by reason, resets."""

import pytest

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.kv_events import KVEventKind
from quire.cache.prefix_miss import MissKind
from quire.cache.sharing import OPEN, SharingTerms
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Finish, StepResult

CONFIG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, max_num_queued_reqs=3
)


def build() -> Scheduler:
    return Scheduler(CONFIG, KVCache(CacheConfig(33, block_size=2, enable_kv_cache_events=True)))


def serve(
    scheduler: Scheduler,
    *prompt: int,
    sharing: SharingTerms = OPEN,
    prompt_logprobs: int | None = None,
) -> Finish:
    scheduler.add(
        NewRequest("r", prompt, Sampling(), Stopping(1), sharing, prompt_logprobs), now=0.0
    )
    step = scheduler.schedule(1.0)
    (delta,) = scheduler.update(step, StepResult(step.number, (7,)), 2.0)
    assert delta.finish is not None
    return delta.finish


def misses(finish: Finish) -> list[tuple[Reason, int]]:
    found = [(event.reason, event.number) for event in finish.timeline]
    assert found[1] == (Reason.ADMITTED, finish.num_cached_tokens)
    return [each for each in found if each[0].startswith("miss")]


@pytest.mark.parametrize("kind", MissKind)
def test_every_miss_has_its_reason(kind: MissKind) -> None:
    assert Reason(f"miss_{kind}").value == f"miss_{kind}"


def test_a_miss_is_in_the_timeline_and_in_the_counters() -> None:
    scheduler = build()
    assert misses(serve(scheduler, 1)) == [(Reason.MISS_TOO_SHORT, 1)]
    assert misses(serve(scheduler, 1, 2, 3, 4, 5)) == [(Reason.MISS_NEW, 0)]
    assert misses(serve(scheduler, 1, 2, 3, 4, 5)) == []
    assert misses(serve(scheduler, 1, 2, 3, 9, 5)) == [(Reason.MISS_DIFFERS, 3)]
    assert misses(serve(scheduler, 1, 2, 3, sharing=SharingTerms(b"a"))) == [(Reason.MISS_SALT, 0)]
    for start in range(10, 60, 10):
        serve(scheduler, *range(start, start + 25))
    assert misses(serve(scheduler, 1, 2, 3)) == [(Reason.MISS_EVICTED, 0)]
    stats = scheduler.stats
    assert stats.num_misses_too_short == stats.num_misses_evicted == 1
    assert stats.num_misses_differing + stats.num_misses_new == 7
    assert stats.num_misses_by_salt == 1


def test_who_declines_to_share_misses_nothing() -> None:
    assert misses(serve(build(), 1, 2, 3, prompt_logprobs=0)) == []


def test_a_reset_forgets_the_cache_and_its_hit_rate() -> None:
    scheduler = build()
    for _ in range(2):
        serve(scheduler, 1, 2, 3)
    assert (scheduler.stats.num_recent_queries, scheduler.stats.num_recent_hits) == (6, 2)
    scheduler.reset_prefix_cache()
    stats = scheduler.stats
    assert (stats.num_recent_queries, stats.num_recent_hits, stats.num_resets) == (0, 0, 1)
    assert (stats.num_prefix_queries, stats.num_prefix_hits) == (6, 2), "counters only grow"
    assert misses(serve(scheduler, 1, 2, 3)) == [(Reason.MISS_NEW, 0)]
    kinds = [event.kind for event in scheduler.take_kv_events()]
    assert kinds == [KVEventKind.STORED, KVEventKind.CLEARED, KVEventKind.STORED]
    assert scheduler.take_kv_events() == ()
