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
from tests.models.families import SERVED, save_checkpoint
from tests.models.reference import STORIES, greedy, ordinary, some_prompts

NUM_SEQS = 16
NUM_NEW = 16
MAX_LEN = 96
BLOCK_SIZE = 8


@pytest.fixture(params=[*SERVED, "stories260K"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "stories260K":
        if not STORIES.is_dir():
            pytest.skip(f"the real weights are not at {STORIES}")
        return STORIES
    return save_checkpoint(SERVED[request.param], tmp_path / "checkpoint")


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


def test_greedy_tokens_are_those_of_generate(checkpoint: Path) -> None:
    prompts = some_prompts(NUM_SEQS, MAX_LEN - NUM_NEW)
    prompts[5] = prompts[4][:20] + prompts[5]  # shares a prefix
    prompts[5] = prompts[5][: MAX_LEN - NUM_NEW]
    engine = build(checkpoint, max_num_batched_tokens=40, num_blocks=60)
    texts = texts_of(engine, prompts)
    reference = ordinary(checkpoint)
    assert texts == [greedy(reference, prompt, NUM_NEW) for prompt in prompts]
    assert engine.stats.num_preemptions > 0
    assert engine.stats.num_blocks_active == 0
