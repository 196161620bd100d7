"""Prompts that are pinned while others run: every accepted request still ends with the text that it
would have alone, pins stay within their bound, and what is pinned is found.
"""

import operator
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.cache.spec import FULL
from quire.models.toy import toy_layout
from quire.scheduler.pinning import max_pinned_blocks
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.engine.invariants import COMMON, arrivals, bursts, check_outcome, shapes
from tests.engine.toy_engine import (
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    Arrival,
    Shape,
    World,
    cache_of,
    scheduler_config,
)

STEPS = st.integers(0, 15)
MADE = (Reason.PINNED, Reason.NOT_PINNED, Reason.PIN_LOST)


@dataclass(frozen=True)
class Pinning:
    """A prompt of `num_blocks` full blocks that is to be pinned in one step, and not any more in
    another."""

    name: str
    num_blocks: int
    step: int
    unpin_step: int | None

    def request(self, block_size: int) -> NewRequest:
        prompt = COMMON[: self.num_blocks * block_size]
        return NewRequest(self.name, prompt, Sampling(), Stopping(0), pins_prompt=True)


@st.composite
def roomy_shapes(draw: st.DrawFn) -> Shape:
    """Shapes whose pool has room for some pins beside the longest request."""
    shape = replace(draw(shapes()), caches_prefixes=True)
    groups = toy_layout(shape.layers, hybrid=shape.hybrid).patterns
    least = cache_of(shape, groups).max_blocks(MAX_MODEL_LEN)
    return replace(shape, num_blocks=1 + least + draw(st.integers(1, 8)))


@st.composite
def pinnings(draw: st.DrawFn) -> list[Pinning]:
    return [
        Pinning(
            f"pin{index}",
            draw(st.integers(1, 4)),
            draw(STEPS),
            draw(st.none() | st.integers(0, 30)),
        )
        for index in range(draw(st.integers(1, 4)))
    ]


def play(
    shape: Shape, script: list[Arrival], pins: list[Pinning], reset_step: int | None
) -> tuple[World, set[str]]:
    """Run until all is done, in a bounded number of steps. Return also which prompts must be pinned
    at the end."""
    world, kept = World(shape), set[str]()
    num_tokens = sum(len(a.new.prompt_token_ids) + a.new.stopping.max_tokens for a in script)
    num_tokens += sum(pin.num_blocks * shape.block_size for pin in pins)
    most = max_pinned_blocks(scheduler_config(shape), world.cache)
    asked = [Arrival(pin.request(shape.block_size), pin.step) for pin in pins]
    for step in range(100 + 30 * num_tokens):
        _begin(world, [*asked, *script], step)
        if step == reset_step:
            world.scheduler.reset_prefix_cache()
            kept.clear()
        ended = {name for name in world.deltas if _is_ended(world, name)}
        world.step()
        kept |= {
            pin.name
            for pin in pins
            if pin.name not in ended and Reason.PINNED in _reasons(world, pin.name)
        }
        for pin in pins:
            if pin.unpin_step == step:
                world.scheduler.unpin(pin.name)
                kept.discard(pin.name)
        assert world.cache.usage.pinned <= most
        if step > 60 and not world.has_work:
            return world, kept
    raise AssertionError("not done")


def _begin(world: World, script: list[Arrival], step: int) -> None:
    for arrival in script:
        if arrival.step == step:
            world.add(arrival.new)
        if arrival.abort_step == step:
            world.abort(arrival.new.id)


def _is_ended(world: World, name: str) -> bool:
    return bool(world.deltas[name]) and world.deltas[name][-1].finish is not None


def _reasons(world: World, name: str) -> list[Reason]:
    if name not in world.deltas or not _is_ended(world, name):
        return []
    finish = world.deltas[name][-1].finish
    return [] if finish is None else [event.reason for event in finish.timeline]


@st.composite
def longest(draw: st.DrawFn) -> list[Arrival]:
    """Requests that need as many blocks as any may."""
    return [
        longest_request(f"long{index}", draw(st.integers(1, MAX_MODEL_LEN - 1)), draw(STEPS))
        for index in range(draw(st.integers(0, 2)))
    ]


def longest_request(name: str, num_prompt: int, step: int) -> Arrival:
    prompt = tuple((5 * index + len(name)) % VOCAB_SIZE for index in range(num_prompt))
    stopping = Stopping(MAX_MODEL_LEN - num_prompt)
    return Arrival(NewRequest(name, prompt, Sampling(temperature=0.0), stopping), step)


SHAPE = Shape(2, 60, 2, 8, caches_prefixes=True, watermark=0.0, late=False, layers=(FULL, FULL))


@given(
    roomy_shapes(),
    st.builds(operator.add, st.one_of(arrivals(), bursts()), longest()),
    pinnings(),
    st.none() | st.integers(0, 30),
)
@example(SHAPE, [], [Pinning("pin0", 3, 0, None), Pinning("pin1", 4, 0, 20)], None)
@example(SHAPE, [], [Pinning("pin0", 3, 0, None)], 0)
def test_every_request_ends_beside_pins_and_what_is_pinned_is_found(
    shape: Shape, script: list[Arrival], pins: list[Pinning], reset_step: int | None
) -> None:
    world, kept = play(shape, script, pins, reset_step)
    for arrival in script:
        check_outcome(world, arrival, shape.layers)
    for pin in pins:
        refusal, reasons = world.refusals.get(pin.name), _reasons(world, pin.name)
        if refusal is not None:
            assert refusal.reason in (Reason.PINS_FULL, Reason.CONTEXT_EXCEEDED)
            assert any(char.isdigit() for char in refusal.message)
        else:
            assert sum(reason in MADE for reason in reasons) == 1
            assert reasons[-1] is Reason.PROMPT_COMPUTED
    for pin in pins:
        if pin.name in kept:
            prompt = pin.request(shape.block_size).prompt_token_ids
            cache = world.cache
            assert cache.num_cached(cache.open_table(), [*prompt, 1], use_host=False) >= len(prompt)
    usage = world.cache.usage
    assert usage.active == 0
    assert usage.free + usage.cached + usage.pinned == shape.num_blocks - 1
    assert kept or not usage.pinned


def test_pins_without_their_bound_would_starve_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape, pins = replace(SHAPE, num_blocks=29), [Pinning("pin0", 6, 0, None)]
    script = [longest_request("long", 20, 1)]
    world, kept = play(shape, script, pins, None)
    assert world.refusals["pin0"].reason is Reason.PINS_FULL and not kept
    check_outcome(world, script[0])
    monkeypatch.setattr("quire.scheduler.pinning.max_pinned_blocks", lambda config, cache: 6)
    with pytest.raises(AssertionError):
        play(shape, script, pins, None)
