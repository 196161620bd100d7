"""Running outputs keep their pace beside prompts, prompts end all the same, and it is told why a
prompt is computed in smaller parts."""

from collections import defaultdict
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.pacing.pace import LEAST_TOKENS, STALL
from quire.scheduler.pacing.step_work import StepWork, work_of
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Finish, Step
from tests.scheduler.driver import result_of

BASE_S, TOKEN_S, SEQ_S = 0.01, 0.001, 0.001
BUDGET = 256
CONFIG = SchedulerConfig(16, BUDGET, 8192, 100)
CLOSE = 1.02
"""Times are predicted by a fit that is held to zero a little, while its weights still change."""


def seconds_of(work: StepWork) -> float:
    return BASE_S + TOKEN_S * work.num_prefill_tokens + SEQ_S * work.num_decode_tokens


def request(
    name: str,
    num_prompt: int,
    max_tokens: int,
    itl_s: float | None = None,
    ttft_s: float | None = 9.0,
) -> NewRequest:
    first = crc32(name.encode())
    prompt, stopping = (first, *range(1, num_prompt)), Stopping(max_tokens)
    return NewRequest(name, prompt, Sampling(), stopping, target_itl_s=itl_s, target_ttft_s=ttft_s)


class TimedDriver:
    """Steps a scheduler on a device whose steps take `seconds_of` their work, with nothing
    between."""

    def __init__(
        self,
        num_blocks: int = 2000,
        config: SchedulerConfig = CONFIG,
        *,
        caches_prefixes: bool = False,
    ) -> None:
        self.cache = KVCache(CacheConfig(num_blocks, 16, enable_prefix_caching=caches_prefixes))
        self.scheduler = Scheduler(config, self.cache)
        self.now = 0.0
        self.steps: list[Step] = []
        self.token_times: dict[str, list[float]] = defaultdict(list)
        self.finishes: dict[str, Finish] = {}

    def add(self, *news: NewRequest) -> None:
        for new in news:
            assert self.scheduler.add(new, self.now) is None

    def step(self) -> Step:
        step = self.scheduler.schedule(self.now)
        self.steps.append(step)
        self.now += seconds_of(work_of(step))
        for delta in self.scheduler.update(step, result_of(step), self.now):
            if delta.token_ids:
                self.token_times[delta.request_id].append(self.now)
            if delta.finish is not None:
                self.finishes[delta.request_id] = delta.finish
        return step

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step()

    def finish(self) -> None:
        while self.scheduler.has_work:
            self.step()
            assert len(self.steps) < 10_000

    def learn(self) -> None:
        """Let the scheduler see steps of all kinds."""
        for number in range(4):
            self.add(request(f"learn{number}", 150 + 64 * number, 30))
            self.run(6)
        self.finish()
        self.steps.clear()
        self.token_times.clear()

    def gaps(self, name: str) -> list[float]:
        return [after - before for before, after in pairwise(self.token_times[name])]


@pytest.mark.parametrize("target_s", [0.05, 0.1, 0.2])
def test_outputs_keep_the_target_that_is_nearest(target_s: float) -> None:
    driver = TimedDriver()
    driver.learn()
    driver.add(request("near", 20, 200, target_s), request("far", 20, 200, 4 * target_s))
    driver.run(5)
    driver.add(request("long", 3000, 4))
    driver.finish()
    gaps = driver.gaps("near")[5:]
    assert max(gaps) <= target_s * CLOSE
    mixed = [work_of(step).num_prefill_tokens for step in driver.steps if len(step.chunks) == 3]
    left_s = target_s - BASE_S - 2 * SEQ_S
    assert max(mixed[2:]) > 0.5 * min(left_s / TOKEN_S, BUDGET - 2), "prompts get what is left"
    timeline = driver.finishes["long"].timeline
    paced = [event for event in timeline if event.reason is Reason.PACED]
    if left_s / TOKEN_S < BUDGET - 2:
        assert {event.other for event in paced} == {"near"}
    stats = driver.scheduler.stats
    assert stats.num_itl_missed == 0 and stats.num_itl_met == 2 * 199


def test_without_targets_a_stall_is_bounded() -> None:
    driver = TimedDriver()
    driver.learn()
    driver.add(*(request(name, 20, 300) for name in "abcd"))
    driver.run(8)
    decode_s = seconds_of(work_of(driver.steps[-1]))
    driver.add(request("long", 3000, 4))
    driver.finish()
    assert max(driver.gaps("a")[8:]) <= STALL * decode_s * CLOSE
    (paced, *_) = [e for e in driver.finishes["long"].timeline if e.reason is Reason.PACED]
    assert paced.other == "" and paced.number >= LEAST_TOKENS


def test_prompts_alone_take_all_of_a_step() -> None:
    driver = TimedDriver()
    driver.learn()
    driver.add(request("a", 1000, 2, 0.02), request("b", 1000, 2, 0.02))
    sizes = [driver.step().num_tokens for _ in range(3)]
    assert sizes == [BUDGET] * 3


def test_a_target_out_of_reach_is_missed_and_prompts_go_on() -> None:
    driver = TimedDriver()
    driver.learn()
    driver.add(request("a", 20, 150, 0.001))
    driver.run(4)
    driver.add(request("long", 1000, 2, ttft_s=0.5))
    driver.finish()
    steps = [step for step in driver.steps if len(step.chunks) == 2]
    assert {work_of(step).num_prefill_tokens for step in steps[:-2]} == {LEAST_TOKENS}
    stats = driver.scheduler.stats
    assert (stats.num_itl_met, stats.num_itl_missed) == (0, 149)
    assert stats.num_ttft_missed == 1


def test_a_waiting_prompt_is_told_that_others_have_had_the_share() -> None:
    driver = TimedDriver()
    driver.learn()
    driver.add(request("a", 20, 100, 0.05))
    driver.run(4)
    driver.add(request("long", 800, 2), request("next", 50, 2))
    driver.finish()
    reasons = {event.reason: event for event in driver.finishes["next"].timeline}
    assert reasons[Reason.WAITS_FOR_PACE].other == "a"
    assert reasons[Reason.WAITS_FOR_PACE].number >= LEAST_TOKENS


@given(
    st.lists(
        st.tuples(
            st.integers(1, 600),
            st.integers(1, 20),
            st.none() | st.floats(1e-3, 1.0),
            st.integers(0, 6),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(60, 200),
)
def test_every_running_output_gets_a_token_in_every_step(
    asked: list[tuple[int, int, float | None, int]], num_blocks: int
) -> None:
    """But for those that lose their blocks to others."""
    driver = TimedDriver(num_blocks)
    for number, (num_prompt, max_tokens, target_s, num_steps) in enumerate(asked):
        driver.add(request(f"r{number}", num_prompt, max_tokens, target_s))
        driver.run(num_steps)
    driver.finish()
    assert len(driver.finishes) == len(asked)
    assert {finish.num_output_tokens for finish in driver.finishes.values()} == {
        max_tokens for _, max_tokens, *_ in asked
    }
    for name, finish in driver.finishes.items():
        in_steps = [
            number
            for number, step in enumerate(driver.steps)
            if any(chunk.request_id == name and chunk.samples for chunk in step.chunks)
        ]
        if not finish.num_preemptions:
            assert in_steps == [*range(in_steps[0], in_steps[0] + len(in_steps))]
