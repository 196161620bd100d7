"""What a watch tells of a scheduler is what it does, and no decision depends on being watched."""

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.block_pool import BlockState
from quire.cache.live.block_watch import FIRST_SET, apply_runs
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.live.live_frame import (
    LiveFrame,
    LiveProgress,
    LiveRequest,
    RequestPhase,
    TokenTimes,
)
from quire.scheduler.live.live_watch import MAX_WAITING, LiveWatch
from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.scheduler.driver import CONFIG, Driver, request

NUM_BLOCKS = 14
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.integers(1, 9), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 9), st.just(0), st.just(0)),
        st.just(("step", 0, 0, 0)),
        st.just(("step", 0, 0, 0)),
        st.just(("reset", 0, 0, 0)),
    ),
    max_size=40,
)


class Folded:
    """What the frames of a watch have told by now."""

    def __init__(self, num_blocks: int) -> None:
        self.codes = [-1] * num_blocks
        self.sets: dict[int, tuple[int, ...]] = {}
        self.requests: dict[int, LiveRequest] = {}
        self.progress: dict[int, LiveProgress] = {}

    def take(self, frame: LiveFrame) -> None:
        apply_runs(self.codes, frame.runs)
        self.sets.update(frame.sets)
        for each in frame.entered:
            assert each.number not in self.requests
            self.requests[each.number] = each
        for progress in frame.progress:
            event = progress.event or self.progress[progress.number].event
            self.progress[progress.number] = progress._replace(event=event)
        for number in frame.left:
            del self.requests[number], self.progress[number]

    def seen(self) -> tuple[list[object], dict[str, object]]:
        """Blocks by the ids of their holders, and requests by their ids without numbers."""
        ids = {number: each.id for number, each in self.requests.items()}
        cells: list[object] = [
            {ids[each] for each in self.sets[code]} if code >= FIRST_SET else BlockState(code)
            for code in self.codes
        ]
        requests: dict[str, object] = {
            each.id: (each._replace(number=0), self.progress[number]._replace(number=0))
            for number, each in self.requests.items()
        }
        return cells, requests


def prompt_of(name: str, tenant: int, num_prompt: int, max_tokens: int) -> NewRequest:
    """Prompts begin alike, so that blocks are shared; those of the last tenant have targets."""
    prompt = (*range(num_prompt), len(name))
    target_s = 1.5 if tenant == 2 else None
    return NewRequest(
        name,
        prompt,
        Sampling(),
        Stopping(max_tokens),
        tenant=f"t{tenant}",
        target_ttft_s=target_s,
        target_itl_s=target_s,
    )


def play(driver: Driver, action: tuple[str, int, int, int], index: int) -> None:
    kind, first, second, third = action
    if kind == "add":
        driver.add(prompt_of(f"r{index}", first, second, third))
    elif kind == "abort":
        ended = driver.scheduler.abort(f"r{first}", driver.now)
        if ended is not None and ended.finish is not None:
            driver.finishes[ended.request_id] = ended.finish
            driver.waiting.pop(ended.request_id, None)
    elif kind == "reset":
        driver.scheduler.reset_prefix_cache()
    elif driver.scheduler.has_work:
        driver.step()


@given(
    actions=ACTIONS,
    policy=st.sampled_from(PolicyName),
    every=st.integers(1, 4),
    caches_prefixes=st.booleans(),
)
def test_frames_tell_what_is_there_and_change_nothing(
    actions: list[tuple[str, int, int, int]], policy: PolicyName, every: int, caches_prefixes: bool
) -> None:
    config = SchedulerConfig(4, 8, 24, 100, scheduling_policy=policy, watermark=0.0, max_skips=2)
    watched, alone = (Driver(config, NUM_BLOCKS, caches_prefixes=caches_prefixes) for _ in range(2))
    watch, folded = LiveWatch(watched.scheduler.in_flight), Folded(NUM_BLOCKS)
    for index, action in enumerate(actions):
        play(watched, action, index)
        play(alone, action, index)
        if index % every == 0:
            frame = watch.frame()
            assert frame.is_whole is (index == 0)
            folded.take(frame)
            whole = Folded(NUM_BLOCKS)
            whole.take(LiveWatch(watched.scheduler.in_flight).frame())
            assert folded.seen() == whole.seen()
            timed = {n for n, each in folded.requests.items() if each.target_itl_s is not None}
            assert {n for n, each in folded.progress.items() if each.times is not None} == timed
            assert (frame.pace is not None) is bool(timed)
            assert len(folded.requests) == len(watched.news.keys() - watched.finishes.keys())
    watched.run()
    alone.run()
    assert watched.finishes == alone.finishes
    assert watched.admissions == alone.admissions
    assert watched.scheduler.stats == alone.scheduler.stats


def test_phases_and_reasons_of_a_preemption() -> None:
    driver = Driver(CONFIG, num_blocks=8)
    watch, folded = LiveWatch(driver.scheduler.in_flight), Folded(8)
    for name in ("a", "b"):
        driver.add(request(name, num_prompt=4, max_tokens=9))
    folded.take(watch.frame())
    assert {each.phase for each in folded.progress.values()} == {RequestPhase.QUEUED}
    seen: dict[str, list[RequestPhase]] = {"a": [], "b": []}
    events = set()
    while driver.scheduler.has_work:
        driver.step()
        folded.take(watch.frame())
        for number, progress in folded.progress.items():
            seen[folded.requests[number].id].append(progress.phase)
            assert progress.event is not None
            events.add((progress.event.reason, progress.event.other))
    assert RequestPhase.PREEMPTED in seen["b"] and RequestPhase.PREEMPTED not in seen["a"]
    assert (Reason.WAITS_AFTER_PREEMPTION, "") in events
    assert folded.requests == {}
    assert folded.codes == [0, *[1] * 7]


def test_what_has_not_changed_is_not_told_again() -> None:
    driver = Driver(CONFIG)
    watch = LiveWatch(driver.scheduler.in_flight)
    driver.add(request("a"))
    driver.step()
    first, second = watch.frame(), watch.frame()
    assert first.entered and first.progress and first.runs
    assert second == LiveFrame(False, [], [], [], [], [], 0)
    driver.step()
    (progress,) = watch.frame().progress
    assert (progress.phase, progress.num_outputs) == (RequestPhase.DECODE, 2)


def test_of_a_long_line_the_rest_is_counted() -> None:
    driver = Driver(CONFIG)
    for index in range(MAX_WAITING + 30):
        driver.add(request(f"r{index}"))
    frame = LiveWatch(driver.scheduler.in_flight).frame()
    assert (len(frame.entered), frame.num_unlisted) == (MAX_WAITING, 30)


def test_targets_are_told_with_the_times_of_tokens() -> None:
    driver = Driver(CONFIG)
    watch, folded = LiveWatch(driver.scheduler.in_flight), Folded(33)
    new = prompt_of("a", 2, 5, 4)
    driver.add(new)
    first = watch.frame()
    folded.take(first)
    (entered,) = first.entered
    assert (entered.target_ttft_s, entered.target_itl_s) == (1.5, 1.5)
    assert folded.progress[0].times == TokenTimes(None, None, 0)
    driver.step()
    folded.take(watch.frame())
    times = folded.progress[0].times
    assert times is not None
    assert times.ttft_s is not None and times.ttft_s > 0 and times.itl_s is None
    driver.now += 10
    driver.step()
    folded.take(watch.frame())
    times = folded.progress[0].times
    assert times is not None and times.itl_s is not None
    assert times.itl_s > 10 and times.num_late == 1
    driver.run()
    assert driver.finishes["a"].num_late_tokens >= 1
    assert driver.scheduler.stats.num_itl_missed == driver.finishes["a"].num_late_tokens
    assert watch.frame().pace is None
