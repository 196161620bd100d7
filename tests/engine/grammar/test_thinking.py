"""A thinking budget goes together with a grammar: the reasoning that comes before is closed, and
what follows is of the grammar."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.engine import Engine
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, ReasoningTags, ThinkingBudget
from quire.server.grammars.compose import compose
from quire.server.parsers.formats import ReasoningFormatName
from tests.engine.grammar.test_grammars import (
    MAX_TOKENS,
    NUM_REQUESTS,
    TOKENIZER,
    build,
    request,
    run,
)
from tests.profiles import cases

pytest.importorskip("llguidance", reason="llguidance is not installed")

THINK = ReasoningFormatName.think.value
SCHEMA = {
    "type": "array",
    "items": {"type": "boolean"},
    "minItems": 2,
    "maxItems": 3,
    "x-guidance": {"whitespace_flexible": False},
}
OPENS, CLOSES = (
    TOKENIZER.encode(tag, add_special_tokens=False) for tag in (THINK.opens, THINK.closes)
)


def thinking(index: int, max_tokens: int) -> NewRequest:
    """A request whose prompt has opened the reasoning."""
    grammar = compose(
        f"body: %json {json.dumps(SCHEMA)}", THINK, prompt=THINK.opens, special_tokens={}
    )
    plain = request(index, grammar)
    budget = ThinkingBudget(max_tokens, OPENS, CLOSES, is_open=True)
    tags = ReasoningTags("", THINK.closes)
    return replace(
        plain, sampling=replace(plain.sampling, reasoning_tags=tags, thinking_budget=budget)
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = build()
    yield engine
    engine.close()


@cases(6)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=NUM_REQUESTS))
def test_reasoning_is_closed_and_the_answer_is_of_the_grammar(
    engine: Engine, budgets: list[int]
) -> None:
    requests = [thinking(index, budget) for index, budget in enumerate(budgets)]
    texts, finishes = run(engine, requests)
    for index, budget in enumerate(budgets):
        thought, tag, answer = texts[str(index)].partition(THINK.closes)
        assert tag and finishes[str(index)].reason is Reason.END_OF_SEQUENCE
        assert 2 <= len(json.loads(answer)) <= 3
        num_thought = len(TOKENIZER.encode(thought, add_special_tokens=False))
        assert num_thought <= budget + len(CLOSES)


def test_a_preempted_request_keeps_its_budget(engine: Engine) -> None:
    requests = [thinking(index, MAX_TOKENS // 2) for index in range(NUM_REQUESTS)]
    tight = build(is_tight=True, preemption=PreemptionMode.RECOMPUTE)
    texts, finishes = run(tight, requests)
    assert sum(finish.num_preemptions for finish in finishes.values()) > 0
    assert texts == run(engine, requests)[0]
    tight.close()
