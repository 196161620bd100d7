"""An engine that is thrown away at any step, another that goes on for it, and what its clients
have had.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hypothesis import strategies as st

from quire.scheduler.reasons import PREEMPTIONS, Reason
from quire.scheduler.request import Event, NewRequest, ResumedOutput, ThinkingBudget
from quire.scheduler.step import Delta, Finish, Refusal, Stats
from tests.engine.invariants import (
    BY_TIME,
    GRAMMAR_SAMPLINGS,
    arrivals,
    bursts,
    check_outcome,
    pooled_arrivals,
    scored_arrivals,
)
from tests.engine.toy_engine import Arrival, Shape, World, play

ADMISSIONS = (Reason.ADMITTED, Reason.FORKED)


class Crash(NamedTuple):
    """The engine ends at a step; what that step gave is lost or was sent. For `down_s` seconds
    there is none."""

    step: int
    loses_output: bool
    down_s: int = 0


CRASHES = st.lists(
    st.builds(Crash, st.integers(0, 30), st.booleans(), st.integers(0, 3)),
    min_size=1,
    max_size=5,
    unique_by=lambda crash: crash.step,
)

RICH_SAMPLINGS = st.builds(
    replace,
    GRAMMAR_SAMPLINGS,
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    bad_words=st.sampled_from([(), ((3,), (1, 2), (6, 7, 8))]),
    num_logprobs=st.sampled_from([None, None, 0, 2]),
    thinking_budget=st.sampled_from([None, None, ThinkingBudget(2, (3,), (4, 6), is_open=True)]),
)


SCRIPTS = scored_arrivals(st.one_of(arrivals(RICH_SAMPLINGS), bursts(), pooled_arrivals()))


@dataclass
class RestartedWorld:
    """Worlds one after another, and what clients have had: deltas, events, and the accounts of each
    engine as it told them last. What an engine is told and what it answers goes in one message a
    step: it is sent whole, or lost whole.
    """

    shape: Shape
    num_scored_of: Callable[[list[Delta]], int]
    deltas: dict[str, list[Delta]] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    stats: list[Stats] = field(default_factory=list)
    news: dict[str, NewRequest] = field(default_factory=dict)
    aborts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(self.shape)
        self.resumes: list[tuple[NewRequest, ResumedOutput]] = []
        self.unanswered: list[NewRequest] = []
        self.stats.append(self.world.scheduler.stats)

    @property
    def has_work(self) -> bool:
        return self.world.has_work or bool(self.resumes or self.unanswered)

    def tokens_of(self, request_id: str) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas[request_id] for token in delta.token_ids)

    def finish_of(self, request_id: str) -> Finish | None:
        deltas = self.deltas[request_id]
        return deltas[-1].finish if deltas else None

    def step(self, *, loses_output: bool = False) -> None:
        """One message to the engine, a step, one message back, which may be lost."""
        resumed, new = self.resumes, self.unanswered
        for request, handed_out in resumed:
            self.world.add(request, handed_out)
        for request in new:
            self.world.add(request)
        for request_id in self.aborts:
            self.world.abort(request_id)
        self.world.step()
        if not loses_output:
            self.resumes, self.unanswered, self.aborts = [], [], []
            self._hand_out(new)

    def _hand_out(self, new: Collection[NewRequest]) -> None:
        assert all(each.id not in self.world.refusals for each in self.news.values())
        for request in new:
            refusal = self.world.refusals.get(request.id)
            if refusal is not None:
                self.refusals[request.id] = refusal
                continue
            self.news[request.id], self.deltas[request.id] = request, []
            self.events[request.id] = []
        for request_id, deltas in self.world.deltas.items():
            self.deltas[request_id] += deltas
            deltas.clear()
        for request_id, event in self.world.take_events():
            self.events[request_id].append(event)
        self.stats[-1] = self.world.scheduler.stats

    def crash(self, down_s: int) -> None:
        """Another engine is given all that was accepted and has not ended, in the old order."""
        self.world = World(self.shape, self.world.now + down_s)
        self.stats.append(self.world.scheduler.stats)
        self.resumes = [
            (new, self._resumed(new.id))
            for new in self.news.values()
            if self.finish_of(new.id) is None
        ]

    def _resumed(self, request_id: str) -> ResumedOutput:
        deltas = self.deltas[request_id]
        return ResumedOutput(
            self.tokens_of(request_id),
            self.num_scored_of(deltas),
            tuple(self.events[request_id]),
        )


def num_scored(deltas: list[Delta]) -> int:
    return 1 + sum(len(delta.prompt_logprobs) for delta in deltas)


def play_with_crashes(
    shape: Shape,
    script: list[Arrival],
    crashes: list[Crash],
    num_scored_of: Callable[[list[Delta]], int] = num_scored,
) -> RestartedWorld:
    """Until all is done."""
    num_tokens = sum(len(a.new.prompt_token_ids) + a.new.stopping.max_tokens for a in script)
    last = max(max(arrival.step, arrival.abort_step or 0) for arrival in script)
    by_step = {crash.step: crash for crash in crashes}
    restarted = RestartedWorld(shape, num_scored_of)
    for step in range((100 + 30 * num_tokens) * (1 + len(crashes))):
        restarted.unanswered += [each.new for each in script if each.step == step]
        restarted.aborts += [each.new.id for each in script if each.abort_step == step]
        crash = by_step.get(step)
        restarted.step(loses_output=crash is not None and crash.loses_output)
        if crash is not None:
            restarted.crash(crash.down_s)
        elif step > last + 1 and not restarted.has_work:
            return restarted
    raise AssertionError("not done")


def check_restarts(
    shape: Shape,
    script: list[Arrival],
    crashes: list[Crash],
    num_scored_of: Callable[[list[Delta]], int] = num_scored,
) -> RestartedWorld:
    """Every request has what it would have had without any crash, and the accounts of all engines
    together are those of the whole."""
    restarted = play_with_crashes(shape, script, crashes, num_scored_of)
    undisturbed = play(shape, script, max_steps=100_000)
    down_s = sum(crash.down_s for crash in crashes)
    for arrival in script:
        check_outcome(restarted, arrival, shape.layers, down_s=down_s)
        if arrival.new.id in restarted.refusals or arrival.new.id in undisturbed.refusals:
            continue
        deltas = restarted.deltas[arrival.new.id]
        check_timeline(deltas[-1].finish, restarted.events[arrival.new.id])
        check_equal(deltas, undisturbed.deltas[arrival.new.id])
    check_counters(restarted)
    usage = restarted.world.cache.usage
    assert usage.active == 0 and usage.free + usage.cached == shape.num_blocks - 1
    return restarted


def check_timeline(finish: Finish | None, events: list[Event]) -> None:
    """The account's events are those that were told, in the order of time."""
    assert finish is not None
    assert finish.timeline == tuple(events)
    times = [event.time_s for event in events]
    assert times == sorted(times)
    assert events[0].reason is Reason.QUEUED
    assert finish.num_preemptions == sum(event.reason in PREEMPTIONS for event in events)


def check_equal(deltas: list[Delta], undisturbed: list[Delta]) -> None:
    """Log probabilities, vector and end are equal; where time has ended one of the two, its parts
    begin like those of the other."""
    ours, theirs = deltas[-1].finish, undisturbed[-1].finish
    assert ours is not None and theirs is not None
    pairs = [
        (
            [each for delta in found for each in delta.prompt_logprobs]
            for found in (deltas, undisturbed)
        ),
        ([each for delta in found for each in delta.logprobs] for found in (deltas, undisturbed)),
    ]
    are_whole = ours.reason not in BY_TIME and theirs.reason not in BY_TIME
    for mine, others in pairs:
        num = len(mine) if are_whole else min(len(mine), len(others))
        assert mine[:num] == others[: num if not are_whole else None]
    if are_whole:
        assert ours.reason is theirs.reason
        assert deltas[-1].vector == undisturbed[-1].vector


def check_counters(restarted: RestartedWorld) -> None:
    """The sums over all engines are what clients had, each thing counted once."""
    stats, news = restarted.stats, restarted.news
    lengths = {name: len(new.prompt_token_ids) for name, new in news.items()}
    firsts = {
        name: next((event for event in events if event.reason in ADMISSIONS), None)
        for name, events in restarted.events.items()
    }
    found = [name for name, first in firsts.items() if first and first.reason is Reason.ADMITTED]
    forked = [first.number for first in firsts.values() if first and first.reason is Reason.FORKED]
    computed = [
        name
        for name, events in restarted.events.items()
        if any(event.reason in (Reason.FIRST_TOKEN, Reason.PROMPT_COMPUTED) for event in events)
    ]
    num_outputs = sum(len(restarted.tokens_of(name)) for name in news)
    assert sum(each.num_generation_tokens for each in stats) == num_outputs
    assert sum(each.num_prompt_tokens for each in stats) == sum(lengths[name] for name in computed)
    assert sum(each.num_prefix_queries for each in stats) == sum(lengths[name] for name in found)
    assert sum(each.num_forked_tokens for each in stats) == sum(forked)
    events = [event for each in restarted.events.values() for event in each]
    num_preempted = sum(event.reason in PREEMPTIONS for event in events)
    assert sum(each.num_preemptions for each in stats) == num_preempted
