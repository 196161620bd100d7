"""Running outputs keep their pace beside prompts, prompts end all the same, and it is told why a
prompt is computed in smaller parts."""

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.states.state_use import StateUse
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.live.live_watch import LiveWatch
from quire.scheduler.pacing.pace import LEAST_TOKENS, STALL, Pace, PromptShare
from quire.scheduler.pacing.step_work import StepWork, work_of
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Request, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import BlockIds, Finish, Step
from quire.scheduler.step_draft import StepDraft
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
    """Steps a scheduler on a device whose steps take `seconds_of` their work, and `pair_s` for
    each pair of their prompts, with nothing between."""

    def __init__(
        self,
        num_blocks: int = 2000,
        config: SchedulerConfig = CONFIG,
        *,
        caches_prefixes: bool = False,
        pair_s: float = 0.0,
    ) -> None:
        self._pair_s = pair_s
        self.cache = KVCache(CacheConfig(num_blocks, 16, enable_prefix_caching=caches_prefixes))
        self.scheduler = Scheduler(config, self.cache)
        self.now = 0.0
        self.news: dict[str, NewRequest] = {}
        self.steps: list[Step] = []
        self.token_times: dict[str, list[float]] = defaultdict(list)
        self.finishes: dict[str, Finish] = {}

    def add(self, *news: NewRequest) -> None:
        for new in news:
            self.news[new.id] = new
            assert self.scheduler.add(new, self.now) is None

    def step(self) -> Step:
        step = self.scheduler.schedule(self.now)
        self.steps.append(step)
        work = work_of(step)
        self.now += seconds_of(work) + self._pair_s * work.num_prefill_pairs
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


def test_who_looks_on_is_told_the_pace_and_whose_target_it_is() -> None:
    driver = TimedDriver()
    driver.learn()
    driver.add(request("a", 20, 100, 0.05))
    driver.run(4)
    watch = LiveWatch(driver.scheduler.in_flight)
    pace = watch.frame().pace
    assert pace is not None and (pace.num_prompt_tokens, pace.tightest) == (None, "")
    driver.add(request("long", 1000, 2, ttft_s=None))
    driver.run(3)
    pace = watch.frame().pace
    num_prompt = work_of(driver.steps[-1]).num_prefill_tokens
    assert pace is not None and (pace.num_prompt_tokens, pace.tightest) == (num_prompt, "a")
    assert pace.predicted_s == pytest.approx(seconds_of(work_of(driver.steps[-1])), rel=0.1)
    assert pace.error == driver.scheduler.stats.step_time_error < 0.1


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
    assert driver.finishes["a"].num_late_tokens == 149
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


def prompt_tokens(driver: TimedDriver, step: Step) -> dict[str, int]:
    """The tokens of prompts that a step computes, by request."""
    found = {}
    for name, start, num_tokens, *_ in step.chunks:
        num_left = len(driver.news[name].prompt_token_ids) - start
        if num_left > 0:
            found[name] = min(num_tokens, num_left)
    return found


def test_one_token_that_is_left_for_prompts_goes_to_one_of_them() -> None:
    driver = TimedDriver()
    driver.learn()
    driver.add(request("a", 20, 150, 0.001))
    driver.run(4)
    driver.add(request("small", LEAST_TOKENS - 1, 2))
    driver.add(*(request(f"large{number}", 100, 2) for number in range(5)))
    tokens = prompt_tokens(driver, driver.step())
    assert tokens == {"small": LEAST_TOKENS - 1, "large0": 1}


ASKED = st.lists(
    st.tuples(
        st.sampled_from([15, 31, 63, 95]) | st.integers(1, 600),
        st.integers(1, 20),
        st.none() | st.floats(1e-3, 1.0),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=12,
)


def check_prompts(asked: list[tuple[int, int, float | None, int]]) -> None:
    """Whatever the targets, some tokens of prompts go in each step while there are any; all of a
    step's but the last are computed whole, so that few are begun at any time."""
    driver = TimedDriver()
    left: dict[str, int] = {}

    def check_step() -> None:
        num_left = sum(left.values())
        step = driver.step()
        computed = prompt_tokens(driver, step)
        for name, num_tokens in computed.items():
            left[name] -= num_tokens
        assert sum(computed.values()) >= min(LEAST_TOKENS, num_left)
        assert sum(left[name] > 0 for name in computed) <= 1

    for number, (num_prompt, max_tokens, target_s, num_steps) in enumerate(asked):
        driver.add(request(f"r{number}", num_prompt, max_tokens, target_s, ttft_s=None))
        left[f"r{number}"] = num_prompt
        for _ in range(num_steps):
            check_step()
    while driver.scheduler.has_work:
        check_step()
    assert not any(left.values())


@given(ASKED)
def test_prompts_go_on_in_every_step_one_after_another(
    asked: list[tuple[int, int, float | None, int]],
) -> None:
    check_prompts(asked)


def gives_prompts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.scheduler.pacing.pace.LEAST_TOKENS", 1)


def counts_no_chunk_of_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    add_chunk = StepDraft.add_chunk

    def uncounted(
        draft: StepDraft,
        request: Request,
        num_tokens: int,
        new_block_ids: BlockIds,
        states: StateUse | None = None,
    ) -> bool:
        num_before = draft._num_prompt_tokens
        is_prompt = add_chunk(draft, request, num_tokens, new_block_ids, states)
        if num_tokens == 1:
            draft._num_prompt_tokens = num_before
        return is_prompt

    monkeypatch.setattr(StepDraft, "add_chunk", uncounted)


def lets_prompts_take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "share", lambda _pace, _running, _time: PromptShare())


FIXED = settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate])


@pytest.mark.parametrize("plant", [gives_prompts_nothing, counts_no_chunk_of_one_token])
def test_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        FIXED(given(ASKED)(check_prompts))()


def test_a_share_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    lets_prompts_take_all(monkeypatch)
    with pytest.raises(AssertionError):
        test_outputs_keep_the_target_that_is_nearest(0.05)


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
