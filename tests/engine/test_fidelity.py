"""The whole engine says what `transformers.generate` says, token for token in fp32: 16 requests of
mixed lengths at once, a budget that cuts prompts into chunks, and so few blocks that requests
are preempted.
"""

import time
from pathlib import Path

import pytest

from quire.engine.build import build_engine
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.models.reference import (
    BLOCK_SIZE,
    MAX_LEN,
    NUM_NEW,
    NUM_SEQS,
    PROVEN,
    References,
    fidelity_prompts,
)


def build(checkpoint: Path, max_num_batched_tokens: int, num_blocks: int) -> Engine:
    config = EngineConfig(
        model=str(checkpoint),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=num_blocks,
        max_model_len=MAX_LEN,
        max_num_seqs=NUM_SEQS,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    engine, _ = build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
    return engine


def texts_of(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        new = NewRequest(str(index), tuple(prompt), Sampling(temperature=0.0), Stopping(NUM_NEW))
        assert engine.submit(new) is None
    while engine.has_work:
        for delta in engine.turn().deltas:
            texts[int(delta.request_id)] += delta.token_ids
    return texts


@pytest.mark.parametrize("family", PROVEN)
def test_greedy_tokens_are_those_of_generate(family: str, references: References) -> None:
    engine = build(references.checkpoint(family), max_num_batched_tokens=40, num_blocks=60)
    assert texts_of(engine, fidelity_prompts()) == references.greedy_texts(family)
    assert engine.stats.num_preemptions > 0
    assert engine.stats.num_blocks_active == 0
