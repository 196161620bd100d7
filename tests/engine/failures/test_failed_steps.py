"""A model that raises for one request, alone or in company: that one ends, and all others have what
they would have had.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.spec import FULL
from quire.engine.grammar.grammar_processor import GrammarProcessor
from quire.models.batch import Batch
from quire.models.toy import ToyModel
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import Stats
from tests.engine.failures.failing_model import FailingModel
from tests.engine.invariants import BY_TIME, COMMON, check_outcome, shapes
from tests.engine.restarts.restarted_world import SCRIPTS
from tests.engine.toy_engine import GRAMMARS, Arrival, Shape, World, alone, play

POISON = ord("p") - ord("a")
"""A token that no grammar of the toy has."""
ROOMY = Shape(4, 300, 24, 64, caches_prefixes=True, watermark=0.0, late=False)
ERRORS = st.sampled_from([RuntimeError, ValueError, MemoryError, torch.OutOfMemoryError])
NEVER = ((POISON, float("-inf")),)


def poisoned_by(error: type[Exception]) -> Callable[[Batch], Exception | None]:
    """Raise for every batch that has the token."""
    return lambda batch: error("planted") if bool((batch.input_ids == POISON).any()) else None


def harmless(new: NewRequest) -> NewRequest:
    """A request like `new` without the token, in its prompt or its output."""
    prompt = tuple(0 if token == POISON else token for token in new.prompt_token_ids)
    biases = new.sampling.logit_bias + NEVER
    return replace(new, prompt_token_ids=prompt, sampling=replace(new.sampling, logit_bias=biases))


def with_poison(script: list[Arrival], index: int) -> list[Arrival]:
    """The script without the token but for the last of one prompt, which nobody forks from."""
    bad = script[index % len(script)].new
    made = []
    for arrival in script:
        new = harmless(arrival.new)
        if new.id == bad.id:
            prompt = (*new.prompt_token_ids[:-1], POISON)
            new = replace(new, prompt_token_ids=prompt, fork_of=None)
        elif new.fork_of == bad.id:
            new = replace(new, fork_of=None)
        made.append(replace(arrival, new=new))
    return made


@given(shapes(), SCRIPTS, st.integers(0, 11), ERRORS, st.booleans())
def test_one_request_ends_and_all_others_have_what_they_would_have_had(
    shape: Shape, script: list[Arrival], index: int, error: type[Exception], fails_late: bool
) -> None:
    script = with_poison(script, index)
    world = play(
        shape,
        script,
        max_steps=20_000,
        wrap=lambda toy: FailingModel(toy, poisoned_by(error), fails_late),
    )
    for arrival in script:
        if POISON not in arrival.new.prompt_token_ids:
            check_outcome(world, arrival, shape.layers)
        elif arrival.new.id not in world.refusals:
            finish = world.deltas[arrival.new.id][-1].finish
            assert finish is not None and finish.reason in (Reason.STEP_FAILED, *BY_TIME)
            assert world.tokens_of(arrival.new.id) == ()
    usage = world.cache.usage
    assert usage.active == 0 and usage.free + usage.cached == shape.num_blocks - 1


def greedy(name: str, *prompt: int, max_tokens: int = 8) -> NewRequest:
    return NewRequest(name, prompt, Sampling(0.0, logit_bias=NEVER), Stopping(max_tokens))


TWENTY = [greedy(f"r{n}", n % 12, n % 7, n % 5) for n in range(20)]


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_twenty_beside_it_lose_nothing_and_few_steps_are_computed_again(late: bool) -> None:
    models: list[FailingModel] = []

    def wrap(toy: ToyModel) -> FailingModel:
        models.append(FailingModel(toy, poisoned_by(RuntimeError)))
        return models[-1]

    script = [Arrival(new, 0) for new in (*TWENTY, greedy("bad", 1, POISON))]
    world = play(replace(ROOMY, late=late), script, 200, wrap)
    assert all(world.tokens_of(new.id) == alone(new) for new in TWENTY)
    num_steps = 8 + late
    assert models[0].num_forwards <= num_steps + 2 * 5
    assert world.scheduler.stats.num_steps_with_errors == 1


def test_an_error_in_company_alone_costs_nobody_anything() -> None:
    def crowded(batch: Batch) -> Exception | None:
        return RuntimeError("too many") if len(batch.context_lens) > 3 else None

    script = [Arrival(new, 0) for new in TWENTY]
    world = play(ROOMY, script, 200, lambda toy: FailingModel(toy, crowded))
    assert all(world.tokens_of(new.id) == alone(new) for new in TWENTY)


def test_an_error_that_does_not_come_again_costs_one_request_alone_nothing() -> None:
    errors: list[Exception] = [RuntimeError("once")]

    def once(_: Batch) -> Exception | None:
        return errors.pop() if errors else None

    world = play(ROOMY, [Arrival(TWENTY[0], 0)], 200, lambda toy: FailingModel(toy, once))
    assert world.tokens_of("r0") == alone(TWENTY[0])
    assert world.scheduler.stats.num_steps_with_errors == 1


def test_an_error_of_all_requests_alone_is_the_engines() -> None:
    script = [Arrival(new, 0) for new in TWENTY]
    with pytest.raises(RuntimeError, match="broken"):
        play(ROOMY, script, 200, lambda toy: FailingModel(toy, lambda _: RuntimeError("broken")))


def stats_beside_a_grammar() -> Stats:
    """Of an engine in which a request with a grammar fails, and others do not."""
    text = GRAMMARS.texts[2]
    bad = NewRequest("bad", COMMON[:5], Sampling(seed=1, grammar=text), Stopping(12))
    world: World = play(ROOMY, [Arrival(new, 0) for new in (*TWENTY, bad)], 200)
    assert all(world.tokens_of(new.id) == alone(new) for new in TWENTY)
    finish = world.deltas["bad"][-1].finish
    assert finish is not None and finish.reason is Reason.STEP_FAILED
    return world.scheduler.stats


@pytest.mark.parametrize("method", ["force", "edit", "accept"])
def test_a_processor_that_raises_ends_its_own_request(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is built, while its row is sampled, and when it takes the token."""

    def broken(*_: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(GrammarProcessor, method, broken)
    assert stats_beside_a_grammar().num_steps_with_errors == 1


@pytest.mark.parametrize("fails_late", [False, True], ids=["before", "after"])
def test_a_step_with_states_is_not_computed_again(fails_late: bool) -> None:
    """Its states may be written where they are read: another engine goes on with its requests."""
    raised = []

    def error_of(batch: Batch) -> Exception | None:
        error = poisoned_by(MemoryError)(batch)
        raised.extend([] if error is None else [error])
        return error

    def failing(toy: ToyModel) -> FailingModel:
        return FailingModel(toy, error_of, fails_late)

    world = World(replace(ROOMY, layers=(FULL, None), num_states=9), wrap=failing)
    prompts = (COMMON[:9], (*COMMON[:9], POISON))
    for number, prompt in enumerate(prompts):
        world.add(NewRequest(f"r{number}", prompt, Sampling(), Stopping(4)))
    with pytest.raises(MemoryError, match="planted"):
        while world.has_work:
            world.step()
    assert len(raised) == 1
