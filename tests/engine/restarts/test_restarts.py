"""Requests that go on in another engine: their text, scores, ends and accounts are those of a run
without a crash.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings

from quire.cache.block_pool import AccountsError
from quire.scheduler.accounts import Counters
from quire.scheduler.admission import Admission
from quire.scheduler.request import NewRequest, Request, ResumedOutput, Sampling, Stopping
from quire.scheduler.request_builder import RequestBuilder
from quire.scheduler.running import RunningSet
from tests.engine.invariants import COMMON, recurrent_shapes, shapes
from tests.engine.restarts.restarted_world import (
    CRASHES,
    SCRIPTS,
    Crash,
    check_restarts,
    play_with_crashes,
)
from tests.engine.toy_engine import GRAMMARS, Arrival, Shape

ROOMY = Shape(4, 80, 6, 64, caches_prefixes=True, watermark=0.0, late=False)

FIRST = NewRequest("r0", COMMON[:14], Sampling(seed=0), Stopping(6))
FORKS = [
    Arrival(replace(FIRST, id=f"r{n}", sampling=Sampling(seed=n), fork_of="r0" if n else None), 0)
    for n in range(4)
]


@given(shapes(), SCRIPTS, CRASHES)
def test_a_request_that_goes_on_in_another_engine_is_as_if_there_had_been_one(
    shape: Shape, script: list[Arrival], crashes: list[Crash]
) -> None:
    check_restarts(shape, script, crashes)


@given(recurrent_shapes(), SCRIPTS, CRASHES)
def test_states_of_recurrent_layers_are_computed_again_in_another_engine(
    shape: Shape, script: list[Arrival], crashes: list[Crash]
) -> None:
    check_restarts(shape, script, crashes)


@pytest.mark.parametrize("loses_output", [False, True], ids=["sent", "lost"])
def test_forced_tokens_and_scores_go_on_at_every_step(loses_output: bool) -> None:
    news = [
        NewRequest(f"g{n}", COMMON[:6], Sampling(grammar=text, seed=n), Stopping(12, 0, (5,)))
        for n, text in enumerate(GRAMMARS.texts)
    ]
    news += [
        NewRequest("s", COMMON[:9], Sampling(num_logprobs=2), Stopping(9), prompt_logprobs=2),
        NewRequest("n", COMMON[:9], Sampling(seed=7), Stopping(9), fork_of="s"),
    ]
    script = [Arrival(new, step=0) for new in news]
    small_steps = replace(ROOMY, max_num_batched_tokens=8)
    for step in range(14):
        check_restarts(small_steps, script, [Crash(step, loses_output)])
    check_restarts(small_steps, script, [Crash(step, loses_output) for step in range(1, 14, 2)])


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_forks_that_have_no_output_yet_share_their_prompt_again(late: bool) -> None:
    shape = replace(ROOMY, caches_prefixes=False, late=late)
    for step in range(6):
        check_restarts(shape, FORKS, [Crash(step, loses_output=False)])
    restarted = play_with_crashes(shape, FORKS, [Crash(0, loses_output=False)])
    assert restarted.world.scheduler.stats.num_forked_tokens == 3 * 13


def test_forks_that_are_counted_again_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Counters.note_fork

    def twice(
        counters: Counters, request: Request, source: Request, num_shared: int, now: float
    ) -> None:
        request.admitted_s = None
        note(counters, request, source, num_shared, now)

    monkeypatch.setattr(Counters, "note_fork", twice)
    with pytest.raises(AssertionError):
        test_forks_that_have_no_output_yet_share_their_prompt_again(late=True)


def forgets_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    restores_with(monkeypatch, lambda resumed: replace(resumed, output_token_ids=()))


def forgets_what_was_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    restores_with(monkeypatch, lambda resumed: replace(resumed, num_scored=1))


def forgets_events(monkeypatch: pytest.MonkeyPatch) -> None:
    restores_with(monkeypatch, lambda resumed: replace(resumed, timeline=resumed.timeline[:1]))


def forgets_when_it_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    restores_with(monkeypatch, lambda resumed: replace(resumed, timeline=resumed.timeline[1:]))


def restores_with(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[ResumedOutput], ResumedOutput]
) -> None:
    restore = RequestBuilder.resumed

    def forgetful(
        builder: RequestBuilder,
        new: NewRequest,
        resumed: ResumedOutput,
        now: float,
        *,
        is_ready: bool,
    ) -> Request:
        return restore(builder, new, change(resumed), now, is_ready=is_ready)

    monkeypatch.setattr(RequestBuilder, "resumed", forgetful)


def forks_with_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(admission: Admission, request: Request) -> Request | None:
        running: RunningSet = vars(admission)["_running"]
        source = request.new.fork_of
        return running.get(source) if source and not request.num_preemptions else None

    monkeypatch.setattr(Admission, "_source_of", hasty)


@pytest.mark.parametrize(
    "plant",
    [
        forgets_outputs,
        forgets_what_was_scored,
        forgets_events,
        forgets_when_it_arrived,
        pytest.param(forks_with_outputs, marks=pytest.mark.long),
    ],
)
def test_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    @settings(max_examples=2000, derandomize=True, database=None, phases=[Phase.generate])
    @given(shapes(), SCRIPTS, CRASHES)
    def invariant(shape: Shape, script: list[Arrival], crashes: list[Crash]) -> None:
        check_restarts(shape, script, crashes)

    plant(monkeypatch)
    with pytest.raises((AssertionError, AccountsError, ValueError, IndexError, KeyError)):
        invariant()
