"""Outputs under a grammar are of the grammar, alone and preempted, and a grammar that cannot be
compiled ends its request alone.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.startup.build import build_engine
from quire.models.config import ModelDtype
from quire.models.optimizations import Optimization
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import Finish
from quire.server.text.tokenizer import load_tokenizer
from tests.profiles import cases

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")

MAX_TOKENS = 160
NUM_REQUESTS = 4
END_IDS = (0, 1)
BUNDLED = str(files("quire.models") / "bundled")
TOKENIZER = load_tokenizer(BUNDLED, None)
PROMPT = TOKENIZER.encode("First Citizen:", add_special_tokens=False)

values = st.sampled_from(
    [
        {"type": "integer", "minimum": -9, "maximum": 99},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["red", "green", "Grün", 3]},
        {"type": "string", "maxLength": 8},
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    ]
)


def build(
    *,
    is_tight: bool = False,
    preemption: PreemptionMode = PreemptionMode.AUTO,
    is_overlapped: bool = False,
    disabled: tuple[Optimization, ...] = (),
) -> Engine:
    """Tight: so few blocks that requests are preempted."""
    config = EngineConfig(
        ModelConfig(
            BUNDLED, device="cpu", dtype=ModelDtype.FLOAT32, disable_optimizations=disabled
        ),
        MemoryConfig(
            block_size=8,
            kv_cache_tokens=MAX_TOKENS + 40 if is_tight else 4096,
            swap_space=0.01 if preemption is PreemptionMode.SWAP else 0,
        ),
        SchedulingConfig(
            max_model_len=MAX_TOKENS + 20,
            max_num_seqs=NUM_REQUESTS,
            preemption_mode=preemption,
            max_num_batched_tokens=NUM_REQUESTS + 3 if is_tight else None,
            async_scheduling=is_overlapped,
        ),
    )
    engine, facts = build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
    assert set(facts.eos_token_ids) == set(END_IDS)
    return engine


def request(index: int, grammar: str) -> NewRequest:
    sampling = Sampling(seed=index, grammar=grammar)
    return NewRequest(str(index), PROMPT, sampling, Stopping(MAX_TOKENS, eos_token_ids=END_IDS))


def grammar_of(schema: object) -> str:
    return str(
        llguidance.LLMatcher.grammar_from_json_schema(
            json.dumps(schema), None, {"whitespace_flexible": False}
        )
    )


def run(engine: Engine, requests: list[NewRequest]) -> tuple[dict[str, str], dict[str, Finish]]:
    tokens: dict[str, list[int]] = {each.id: [] for each in requests}
    finishes = {}
    for each in requests:
        assert engine.submit(each) is None
    while engine.has_work:
        for delta in engine.step().deltas:
            tokens[delta.request_id] += delta.token_ids
            if delta.finish is not None:
                finishes[delta.request_id] = delta.finish
    texts = {
        name: TOKENIZER.decode(tuple(ids), skip_special_tokens=True) for name, ids in tokens.items()
    }
    return texts, finishes


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = build()
    yield engine
    engine.close()


@cases(12)
@given(st.dictionaries(st.sampled_from(["name", "age", "is_new"]), values, min_size=1))
def test_every_finished_output_is_of_its_schema(
    engine: Engine, properties: dict[str, object]
) -> None:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    texts, finishes = run(engine, [request(index, grammar_of(schema)) for index in range(2)])
    for name, text in texts.items():
        assert finishes[name].reason is Reason.END_OF_SEQUENCE
        assert set(json.loads(text)) == set(properties)
        for key, value in json.loads(text).items():
            assert fits(value, properties[key])


def fits(value: object, schema: object) -> bool:
    assert isinstance(schema, dict)
    if "enum" in schema:
        return value in schema["enum"]
    if schema["type"] == "array":
        assert isinstance(value, list)
        return len(value) <= 3 and all(isinstance(each, bool) for each in value)
    if schema["type"] == "integer":
        return type(value) is int and -9 <= value <= 99
    if schema["type"] == "string":
        return isinstance(value, str) and len(value) <= 8
    return value is None if schema["type"] == "null" else isinstance(value, bool)


@pytest.mark.parametrize("preemption", [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP])
def test_a_preempted_request_goes_on_in_its_grammar(
    engine: Engine, preemption: PreemptionMode
) -> None:
    items = {
        "type": "object",
        "properties": {"n": {"type": "string", "maxLength": 12}},
        "required": ["n"],
        "additionalProperties": False,
    }
    schema = {"type": "array", "items": items, "minItems": 6, "maxItems": 6}
    requests = [request(index, grammar_of(schema)) for index in range(NUM_REQUESTS)]
    tight = build(is_tight=True, preemption=preemption)
    texts, finishes = run(tight, requests)
    assert sum(finish.num_preemptions for finish in finishes.values()) > 0
    assert texts == run(engine, requests)[0]
    assert tight.stats.num_blocks_active == 0
    tight.close()


@pytest.fixture(scope="module")
def others() -> Iterator[list[Engine]]:
    """Engines that sample forced tokens one by one: it is switched off, or steps overlap."""
    engines = [build(disabled=(Optimization.FORCED_TOKENS,)), build(is_overlapped=True)]
    yield engines
    for engine in engines:
        engine.close()


@cases(10)
@given(
    st.lists(st.sampled_from(["name", "a long key of many tokens", "é"]), min_size=1, unique=True),
    values,
    st.builds(
        Stopping,
        st.sampled_from([MAX_TOKENS, 7, 3]),
        st.just(2),
        st.just(END_IDS),
        st.sampled_from([(), tuple(TOKENIZER.encode(':"', add_special_tokens=False))]),
    ),
)
def test_forced_tokens_change_no_output(
    engine: Engine,
    others: list[Engine],
    keys: list[str],
    value: object,
    stopping: Stopping,
) -> None:
    """Nor why it ends, where it is cut or stops among them."""
    grammar = grammar_of(
        {
            "type": "object",
            "properties": dict.fromkeys(keys, value),
            "required": keys,
            "additionalProperties": False,
        }
    )
    requests = [replace(request(index, grammar), stopping=stopping) for index in range(2)]
    scored = [replace(each, sampling=replace(each.sampling, num_logprobs=0)) for each in requests]
    before = engine.stats.num_forced_tokens
    wanted = ends(engine, requests)
    num_forced = engine.stats.num_forced_tokens
    assert num_forced > before
    assert wanted == ends(engine, scored)
    assert engine.stats.num_forced_tokens == num_forced
    for other in others:
        assert wanted == ends(other, requests)
        assert not other.stats.num_forced_tokens


def ends(engine: Engine, requests: list[NewRequest]) -> tuple[dict[str, str], dict[str, Reason]]:
    texts, finishes = run(engine, requests)
    return texts, {name: finish.reason for name, finish in finishes.items()}


def test_a_grammar_that_ends_ends_its_request_whatever_min_tokens_says(engine: Engine) -> None:
    new = replace(request(0, grammar_of({"const": "word"})), stopping=Stopping(50, 40, END_IDS))
    texts, finishes = run(engine, [new])
    assert texts == {"0": '"word"'}
    assert finishes["0"].reason is Reason.END_OF_SEQUENCE


def test_a_bad_grammar_ends_its_request_alone(engine: Engine) -> None:
    plain = request(1, "")
    _, finishes = run(engine, [request(0, "{"), plain])
    assert finishes["0"].reason is Reason.GRAMMAR_FAILED
    assert finishes["1"].reason is not Reason.GRAMMAR_FAILED
    waits = [event.reason for event in finishes["0"].timeline]
    assert Reason.WAITS_FOR_GRAMMAR in waits
    assert Reason.WAITS_FOR_GRAMMAR not in [event.reason for event in finishes["1"].timeline]


def test_an_aborted_request_waits_for_no_grammar(engine: Engine) -> None:
    assert engine.submit(request(0, grammar_of({"type": "integer", "minimum": 7}))) is None
    delta = engine.abort("0")
    assert delta is not None and delta.finish is not None
    assert delta.finish.reason is Reason.ABORTED
    while engine.has_work:
        engine.step()
    assert engine.stats.num_waiting == 0
