"""The whole engine says of models with recurrent layers what `transformers.generate` says, token
for token in float32: alone and in company, in chunks, after preemptions, over prefix hits at every
border, by forks and in steps that are launched ahead.
"""

import time
from dataclasses import replace

import pytest

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.startup.build import build_engine
from quire.models.config import ModelDtype
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.long import long_but_for
from tests.models.driver import DEVICE
from tests.models.families import SERVED
from tests.models.reference import (
    BLOCK_SIZE,
    MAX_LEN,
    NUM_NEW,
    NUM_SEQS,
    References,
    fidelity_prompts,
)

RECURRENT = tuple(name for name, each in SERVED.items() if "state" in each.attention)
SWAP_GIB, GIB = 0.02, 1 << 30
IN_EVERY_RUN = ("qwen3_5_text", "lfm2", "granitemoehybrid, Mamba-2", "falcon_h1", "mamba")
"""One for each operation, attention beside states in one layer, and none at all."""


def build(
    family: str,
    references: References,
    *,
    num_states: int,
    is_tight: bool,
    is_overlapped: bool = False,
) -> Engine:
    checkpoint = references.checkpoint(family)
    has_attention = SERVED[family].attention != "state"
    tokens = 3 * MAX_LEN if is_tight else 2 * NUM_SEQS * MAX_LEN
    config = EngineConfig(
        ModelConfig(str(checkpoint), device=DEVICE, dtype=ModelDtype.FLOAT32),
        memory=MemoryConfig(
            block_size=BLOCK_SIZE,
            kv_cache_tokens=tokens if has_attention else None,
            num_recurrent_states=num_states,
            swap_space=SWAP_GIB,
        ),
        scheduling=SchedulingConfig(
            max_model_len=MAX_LEN,
            max_num_seqs=NUM_SEQS,
            max_num_batched_tokens=40 if is_tight else NUM_SEQS * MAX_LEN,
            async_scheduling=is_overlapped,
            preemption_mode=PreemptionMode.SWAP,
        ),
    )
    engine, facts = build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
    assert facts.num_states == num_states
    receipt = {line.kind: line.num_bytes for line in facts.receipt}
    of_states = facts.num_host_states * receipt["states"] / num_states
    assert 0 < receipt["swap"] <= SWAP_GIB * GIB
    assert 0 < of_states <= SWAP_GIB * GIB / (2 if has_attention else 1)
    return engine


def texts_of(engine: Engine, news: list[NewRequest]) -> dict[str, list[int]]:
    """The texts of requests that come together, and the tokens that each found in the cache."""
    texts: dict[str, list[int]] = {new.id: [] for new in news}
    for new in news:
        assert engine.submit(new) is None
    while engine.has_work:
        for delta in engine.step().deltas:
            texts[delta.request_id] += delta.token_ids
    return texts


def asked(name: str, prompt: list[int], num_new: int = NUM_NEW) -> NewRequest:
    return NewRequest(name, tuple(prompt), Sampling(temperature=0.0), Stopping(num_new))


@long_but_for(IN_EVERY_RUN, "family", RECURRENT)
@pytest.mark.parametrize("is_overlapped", [False, True], ids=["in time", "ahead"])
def test_greedy_tokens_are_those_of_generate(
    family: str, is_overlapped: bool, references: References
) -> None:
    # Ahead, a request is swapped as of a snapshot, which must be there.
    num_states = 24 if is_overlapped else 9
    engine = build(
        family, references, num_states=num_states, is_tight=True, is_overlapped=is_overlapped
    )
    prompts = fidelity_prompts()
    texts = texts_of(engine, [asked(str(index), prompt) for index, prompt in enumerate(prompts)])
    assert list(texts.values()) == references.greedy_texts(family)
    stats = engine.stats
    assert stats.num_states_active == stats.num_blocks_active == stats.num_states_swapped == 0
    if SERVED[family].attention != "state":
        assert stats.num_swaps > 0
        assert is_overlapped or stats.num_state_copies_in > 0


@long_but_for(IN_EVERY_RUN, "family", RECURRENT)
def test_prefix_hits_at_every_border_and_forks_say_the_same(
    family: str, references: References
) -> None:
    """A turn goes on from the last, a copy from before its last token, and forks as copies do."""
    engine = build(family, references, num_states=60, is_tight=False)
    prompts, wanted = fidelity_prompts(), references.greedy_texts(family)
    longest = max(range(len(prompts)), key=lambda index: len(prompts[index]))
    prompt, text = prompts[longest], wanted[longest]
    whole = prompt + text
    for length in range(1, len(whole)):
        name = f"cut {length}"
        said = texts_of(engine, [asked(name, whole[:length], 1)])[name]
        if length >= len(prompt):
            assert said == [whole[length]]
    hits = engine.stats.num_prefix_hits
    assert hits > 0
    first = asked("first", prompt)
    forks = [replace(asked(f"fork {n}", prompt), fork_of="first") for n in range(2)]
    again = texts_of(engine, [first, *forks])
    assert set(map(tuple, again.values())) == {tuple(text)}
    assert engine.stats.num_prefix_hits > hits
