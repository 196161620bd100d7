"""What the invariants are tried on, and how they are checked: any shape, any script."""

from dataclasses import replace
from typing import Protocol

from hypothesis import strategies as st

from quire.cache.sharing import SharingTerms
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.cache.states.policy import PLANNED, SnapshotPolicy
from quire.models.toy import TWO_FULL, ToyLayer, ToyLayers
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName, QueueOrder
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest, Pooling, PoolingKind, Sampling, Stopping
from quire.scheduler.step import Delta, Finish, Refusal
from tests.engine.toy_engine import (
    GRAMMARS,
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    Arrival,
    Shape,
    World,
    alone,
    play,
    vector_alone,
)
from tests.models.timed_model import StepTimes
from tests.models.toy_stacks import layer_stacks

TOKENS = st.integers(0, VOCAB_SIZE - 1)
COMMON = tuple((7 * index + 3) % VOCAB_SIZE for index in range(MAX_MODEL_LEN))
"""Prompts start with a piece of it, so that prefixes are shared."""

SAMPLINGS = st.one_of(
    st.just(Sampling(temperature=0.0)),
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.7, 1.5]),
        top_k=st.sampled_from([0, 3]),
        top_p=st.sampled_from([1.0, 0.8]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        seed=st.integers(0, 3),
    ),
)
GRAMMAR_SAMPLINGS = st.builds(
    lambda sampling, grammar, num_logprobs, biases: replace(
        sampling, grammar=grammar, num_logprobs=num_logprobs, logit_bias=biases
    ),
    SAMPLINGS,
    st.sampled_from(["", *GRAMMARS.texts]),
    st.sampled_from([None, None, 0]),
    st.sampled_from([(), ((2, float("-inf")), (8, float("-inf")))]),
)
"""Those with a grammar may ban tokens that it forces."""


POOLINGS = st.builds(
    Pooling, st.sampled_from(PoolingKind), st.sampled_from([None, 1, 5]), st.booleans()
)

OFTEN = st.sampled_from([True, True, False])


def as_fork(new: NewRequest, source: Arrival) -> NewRequest:
    """A request like `new` that forks from the one of `source`."""
    of = source.new
    return replace(new, prompt_token_ids=of.prompt_token_ids, sharing=of.sharing, fork_of=of.id)


BY_TIME = (Reason.ABORTED, Reason.DEADLINE_EXCEEDED)
"""The ends that come sooner or later in the text, by when they happen."""


recurrent_stacks = st.lists(
    st.sampled_from(
        [None, None, FULL, ToyLayer(num_words=2), AttentionPattern(AttentionType.SLIDING, 5)]
    ),
    min_size=1,
    max_size=4,
).map(lambda layers: tuple(layers) if None in layers else (*layers, None))
"""Layers of which one at least is recurrent, perhaps all."""

policies = st.builds(
    SnapshotPolicy,
    prompt_ends=OFTEN,
    junctions=OFTEN,
    outputs=OFTEN,
    interval=st.sampled_from([0, 0, 3, 8]),
    gain_weight=st.sampled_from([0.0, 1.0]),
)

step_times = st.builds(
    StepTimes,
    base_s=st.sampled_from([1 / 256, 1 / 16, 1 / 8]),
    token_s=st.sampled_from([0.0, 1 / 256]),
    factors=st.sampled_from([(1.0,), (1.0, 1.5, 0.5), (1.0,) * 12 + (0.25,) * 12]),
)
"""Steps of at most BUDGET tokens take less than a second."""
BUDGET = 70

targets_s = st.sampled_from([None, None, 1 / 64, 1 / 8, 1 / 4, 1.0, 20.0])
"""Targets that no step meets, that some do, and that all do."""


@st.composite
def recurrent_shapes(draw: st.DrawFn) -> Shape:
    """Shapes with recurrent layers, and few states or many."""
    return replace(
        draw(shapes()),
        layers=draw(recurrent_stacks),
        num_states=draw(st.integers(2, 20)),
        num_host_states=draw(st.just(0) | st.integers(1, 8)),
        snapshots=draw(st.just(PLANNED) | policies),
    )


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    max_num_seqs = draw(st.integers(1, 6))
    return Shape(
        block_size=draw(st.integers(1, 8)),
        num_blocks=draw(st.integers(4, 40)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=min(max_num_seqs + draw(st.integers(0, 20) | st.just(64)), BUDGET),
        caches_prefixes=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.1])),
        late=draw(st.booleans()),
        layers=draw(st.just(TWO_FULL) | layer_stacks(min_size=2)),
        hybrid=draw(st.booleans()),
        policy=draw(st.sampled_from(PolicyName)),
        ageing_s=draw(st.sampled_from([1.0, 30.0, 1000.0])),
        queue_order=draw(st.sampled_from(QueueOrder)),
        max_skips=draw(st.integers(0, 3)),
        num_host_blocks=draw(st.just(0) | st.integers(1, 30)),
        preemption_mode=draw(st.sampled_from(PreemptionMode)),
        wait_for_prefix=draw(st.booleans()),
        times=draw(st.none() | step_times),
    )


@st.composite
def arrivals(draw: st.DrawFn, samplings: st.SearchStrategy[Sampling] = SAMPLINGS) -> list[Arrival]:
    found: list[Arrival] = []
    for index in range(draw(st.integers(1, 8))):
        shared = COMMON[: draw(st.integers(0, 16))]
        own = tuple(draw(st.lists(TOKENS, max_size=6)))
        step = draw(st.integers(0, 10))
        stopping = Stopping(
            max_tokens=draw(st.integers(1, 14)),
            min_tokens=draw(st.integers(0, 1)),
            eos_token_ids=draw(st.sampled_from([(), (5,)])),
            stop_token_ids=draw(st.sampled_from([(), (2, 9)])),
        )
        new = NewRequest(
            id=f"r{index}",
            prompt_token_ids=shared + own or (1,),
            sampling=draw(samplings),
            stopping=stopping,
            sharing=SharingTerms(draw(st.sampled_from([b"", b"tenant"]))),
            tenant=draw(st.sampled_from(["", "a", "b"])),
            weight=draw(st.sampled_from([1.0, 0.5, 4.0])),
            priority=draw(st.integers(-2, 2)),
            time_limit_s=draw(st.none() | st.integers(0, 40).map(float)),
            target_ttft_s=draw(targets_s),
            target_itl_s=draw(targets_s),
        )
        forks = draw(st.booleans())
        if found and forks:
            new = as_fork(new, draw(st.sampled_from(found)))
        aborts = draw(st.none() | st.integers(0, 12))
        found.append(Arrival(new, step, None if aborts is None else step + aborts))
    return found


@st.composite
def bursts(draw: st.DrawFn) -> list[Arrival]:
    """Many of equal prompts, or nearly so, within a few steps; some forks, aborts and limits."""
    found: list[Arrival] = []
    for index in range(draw(st.integers(3, 12))):
        own = tuple(draw(st.lists(TOKENS, max_size=2)))
        step = draw(st.integers(0, 3))
        new = NewRequest(
            id=f"r{index}",
            prompt_token_ids=COMMON[: draw(st.integers(10, 16))] + own,
            sampling=draw(SAMPLINGS),
            stopping=Stopping(draw(st.integers(1, 8))),
            sharing=SharingTerms(draw(st.sampled_from([b"", b"", b"tenant"]))),
            tenant=draw(st.sampled_from(["a", "b"])),
            priority=draw(st.integers(-2, 2)),
            time_limit_s=draw(st.none() | st.integers(1, 20).map(float)),
            target_ttft_s=draw(targets_s),
            target_itl_s=draw(targets_s),
        )
        if found and draw(st.integers(0, 3)) == 0:
            new = as_fork(new, draw(st.sampled_from(found)))
        aborts = draw(st.none() | st.integers(0, 8))
        found.append(Arrival(new, step, None if aborts is None else step + aborts))
    return found


@st.composite
def pooled_arrivals(draw: st.DrawFn) -> list[Arrival]:
    """Requests of which about half end with a vector of their prompt."""
    script = draw(st.one_of(arrivals(), bursts()))
    return [
        arrival if pooling is None else replace(arrival, new=pooled(arrival.new, pooling))
        for arrival in script
        for pooling in [draw(st.none() | POOLINGS)]
    ]


@st.composite
def scored_arrivals(draw: st.DrawFn, scripts: st.SearchStrategy[list[Arrival]]) -> list[Arrival]:
    """Requests of which some have their prompts scored, and some their prefill told."""
    return [
        replace(arrival, new=scored(arrival.new, num_top, reports_prefill=reports))
        for arrival in draw(scripts)
        for num_top, reports in [
            draw(st.tuples(st.sampled_from([None, None, 0, 2]), st.booleans()))
        ]
    ]


def scored(new: NewRequest, num_top: int | None, *, reports_prefill: bool) -> NewRequest:
    """A request like `new` whose prompt is scored, unless it is pooled."""
    if new.pooling is not None:
        return new
    return replace(new, prompt_logprobs=num_top, reports_prefill=reports_prefill)


def pooled(new: NewRequest, pooling: Pooling) -> NewRequest:
    """A request like `new` that ends with a vector of its prompt."""
    return replace(new, stopping=Stopping(max_tokens=0), pooling=pooling)


def check_invariants(shape: Shape, script: list[Arrival]) -> None:
    num_tokens = sum(len(a.new.prompt_token_ids) + a.new.stopping.max_tokens for a in script)
    check_world(play(shape, script, max_steps=100 + 30 * num_tokens), shape, script)


def check_world(world: World, shape: Shape, script: list[Arrival]) -> None:
    """Hold that each request came out as it should, and that all blocks are back at the end."""
    for arrival in script:
        check_outcome(world, arrival, shape.layers)
    usage = world.cache.usage
    assert usage.active == 0, "all blocks are home when idle"
    assert usage.free + usage.cached == shape.num_blocks - 1
    assert world.cache.host_usage.swapped == 0
    states = world.cache.state_usage
    assert states.active == 0
    assert world.cache.states is None or world.cache.states.host_usage.swapped == 0
    assert states.free + states.cached == max(shape.num_states - 1, 0)


class Outcomes(Protocol):
    """What came of requests, by their ids."""

    deltas: dict[str, list[Delta]]
    refusals: dict[str, Refusal]

    def tokens_of(self, request_id: str) -> tuple[int, ...]: ...


def check_outcome(
    world: Outcomes,
    arrival: Arrival,
    layers: ToyLayers = TWO_FULL,
    *,
    down_s: float = 0.0,
) -> None:
    """Refused with numbers, or ended with the text it would have alone, or aborted or out of time
    within that text. The parts of its time add up; for `down_s` of it there was no engine.
    """
    new = arrival.new
    refusal = world.refusals.get(new.id)
    if refusal is not None:
        assert refusal.reason in (Reason.NEVER_FITS, Reason.DEADLINE_HOPELESS), refusal
        assert any(char.isdigit() for char in refusal.message)
        return
    said, wanted = world.tokens_of(new.id), alone(new, layers)
    finish = world.deltas[new.id][-1].finish
    assert finish is not None
    if finish.reason is Reason.ABORTED:
        assert arrival.abort_step is not None
        assert said == wanted[: len(said)]
    elif finish.reason is Reason.DEADLINE_EXCEEDED:
        assert said == wanted[: len(said)]
    elif new.pooling is not None:
        assert finish.reason is Reason.PROMPT_COMPUTED
        assert said == ()
        assert world.deltas[new.id][-1].vector == vector_alone(new, layers)
    else:
        assert said == wanted
    if new.prompt_logprobs is not None and finish.reason not in BY_TIME:
        scores = [each for delta in world.deltas[new.id] for each in delta.prompt_logprobs]
        assert [each.token_id for each in scores] == list(new.prompt_token_ids[1:])
    check_account(finish, new.time_limit_s, len(said), down_s)


def check_account(
    finish: Finish, time_limit_s: float | None, num_outputs: int, down_s: float
) -> None:
    """The parts of a request's time add up to what lies between the first and last of its events,
    and that is within its limit."""
    check_swaps(finish.timeline)
    assert finish.num_output_tokens == num_outputs
    assert finish.queue_s >= 0 and finish.prefill_s >= 0 and finish.decode_s >= 0
    lived_s = finish.timeline[-1].time_s - finish.timeline[0].time_s
    assert finish.queue_s + finish.prefill_s + finish.decode_s == lived_s
    if time_limit_s is not None:
        assert lived_s <= time_limit_s + 1.0 + down_s, "a deadline is passed by one step at most"


def check_swaps(timeline: tuple[Event, ...]) -> None:
    """What the host has promised to keep comes back."""
    swaps: list[Event] = []
    for event in timeline:
        if event.reason in (Reason.SWAPPED_OUT, Reason.SWAPPED_IN):
            swaps.append(event)
        elif event.reason is Reason.ENGINE_RESTARTED and len(swaps) % 2:
            swaps.pop()  # the host's memory went with the engine
    for kept, found in zip(swaps[::2], swaps[1::2], strict=False):
        assert (kept.reason, found.reason) == (Reason.SWAPPED_OUT, Reason.SWAPPED_IN)
        assert found.number >= kept.number
