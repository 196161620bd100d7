"""The bundled model in float32, short of blocks, whose engine is thrown away again and again: every
text and score is that of a run without a crash.
"""

import json
import math
import random
import time
from dataclasses import dataclass, field, replace

import pytest

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.startup.build import build_engine
from quire.models.config import ModelDtype
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.request import (
    Event,
    NewRequest,
    ResumedOutput,
    Sampling,
    Stopping,
    TokenLogprobs,
)
from quire.scheduler.step import Delta, Finish
from quire.server.text.tokenizer import load_tokenizer
from tests.models.test_bundled import FOLDER

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")

PROMPT = tuple(load_tokenizer(str(FOLDER), None).encode("First Citizen:", add_special_tokens=False))
LONG = PROMPT * 8
SCHEMA = {"type": "array", "items": {"enum": ["red", "green", 3, True]}, "minItems": 4}
GRAMMAR = str(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA)))
NUM_CRASHES = 4


def build(preemption: PreemptionMode, *, is_overlapped: bool) -> Engine:
    """An engine with so few blocks that requests are preempted."""
    config = EngineConfig(
        ModelConfig(str(FOLDER), device="cpu", dtype=ModelDtype.FLOAT32, num_threads=1),
        MemoryConfig(
            block_size=8,
            kv_cache_tokens=200,
            swap_space=0.01 if preemption is PreemptionMode.SWAP else 0,
        ),
        SchedulingConfig(
            max_model_len=160,
            max_num_seqs=8,
            max_num_batched_tokens=24,
            preemption_mode=preemption,
            async_scheduling=is_overlapped,
        ),
    )
    return build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)[0]


def requests() -> list[NewRequest]:
    samplings = [
        Sampling(temperature=0.0),
        Sampling(temperature=0.0, frequency_penalty=0.5, num_logprobs=2),
        Sampling(seed=3, repetition_penalty=1.2),
        Sampling(seed=4, top_p=0.9, num_logprobs=0),
        Sampling(seed=5, grammar=GRAMMAR),
        Sampling(seed=6, grammar=GRAMMAR, num_logprobs=1),
    ]
    news = [
        NewRequest(f"r{n}", LONG[: 20 + n], each, Stopping(40, eos_token_ids=(0, 1)))
        for n, each in enumerate(samplings)
    ]
    news[2] = replace(news[2], prompt_logprobs=1)
    forks = [replace(news[3], id=f"f{n}", sampling=Sampling(seed=9 + n)) for n in range(2)]
    return [*news, *(replace(fork, fork_of="r3") for fork in forks)]


@dataclass
class Heard:
    """What a client has had of its request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    finish: Finish | None = None

    def take(self, delta: Delta) -> None:
        assert self.finish is None
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        self.finish = delta.finish

    @property
    def resumed(self) -> ResumedOutput:
        return ResumedOutput(
            tuple(self.token_ids), 1 + len(self.prompt_logprobs), tuple(self.events)
        )


def go_on(engine: Engine, heard: dict[str, Heard], *, num_steps: int, loses_last: bool) -> int:
    """Take steps until there are none left or so many are taken; return the preemptions so far."""
    for step in range(num_steps):
        if not engine.has_work:
            break
        deltas = engine.step().deltas
        if loses_last and step == num_steps - 1:
            break
        for request_id, event in engine.take_events():
            heard[request_id].events.append(event)
        for delta in deltas:
            heard[delta.request_id].take(delta)
    num_preemptions = engine.stats.num_preemptions
    engine.close()
    return num_preemptions


def is_close(mine: TokenLogprobs, other: TokenLogprobs) -> bool:
    """The sums of other batches are rounded otherwise."""
    return mine.token_id == other.token_id and math.isclose(
        mine.logprob, other.logprob, rel_tol=1e-4, abs_tol=1e-4
    )


@pytest.mark.parametrize(
    ("preemption", "is_overlapped"),
    [
        pytest.param(PreemptionMode.RECOMPUTE, False, marks=pytest.mark.long),
        pytest.param(PreemptionMode.RECOMPUTE, True, marks=pytest.mark.long),
        (PreemptionMode.SWAP, False),
        pytest.param(PreemptionMode.SWAP, True, marks=pytest.mark.long),
    ],
)
def test_crashes_change_no_text(preemption: PreemptionMode, is_overlapped: bool) -> None:
    news = requests()
    calm = {new.id: Heard() for new in news}
    engine = build(preemption, is_overlapped=is_overlapped)
    assert all(engine.submit(new) is None for new in news)
    assert go_on(engine, calm, num_steps=10_000, loses_last=False) > 0
    draw = random.Random(1)
    heard = {new.id: Heard() for new in news}
    for life in range(NUM_CRASHES + 1):
        engine = build(preemption, is_overlapped=is_overlapped)
        for new in news:
            if heard[new.id].finish is None:
                resumed = heard[new.id].resumed if heard[new.id].events else None
                assert engine.submit(new, resumed) is None
        num_steps = 10_000 if life == NUM_CRASHES else draw.randint(3, 40)
        go_on(engine, heard, num_steps=num_steps, loses_last=draw.random() < 0.5)
    for name, client in heard.items():
        assert client.token_ids == calm[name].token_ids
        ours, theirs = client.finish, calm[name].finish
        assert ours is not None and theirs is not None and ours.reason is theirs.reason
        for mine, others in (
            (client.logprobs, calm[name].logprobs),
            (client.prompt_logprobs, calm[name].prompt_logprobs),
        ):
            assert len(mine) == len(others)
            assert all(map(is_close, mine, others))
