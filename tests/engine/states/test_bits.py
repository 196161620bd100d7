"""With the C++ kernels a model with recurrent layers in bfloat16, its states float32, says the
same to the bit: alone, in company, over a snapshot of its prefix, also one that another engine has
left on disk, and resumed after a swap.
"""

import time
from pathlib import Path

import pytest

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.startup.build import build_engine
from quire.models.config import ModelDtype
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.request import NewRequest, Sampling, Stopping, TokenLogprobs
from tests.instructions import library_with_products
from tests.long import long_but_for
from tests.models.reference import References, some_prompts

NUM_TOGETHER = 32
NUM_NEW = 20
BLOCK_SIZE = 8
SWAP_GIB = 0.1
FAMILIES = ("qwen3_5_text", "qwen3_next", "lfm2", "falcon_h1", "bamba", "mamba", "mamba2")
IN_EVERY_RUN = FAMILIES[:1] + FAMILIES[2:4]
PROMPTS = some_prompts(NUM_TOGETHER, 60)

Said = tuple[list[int], list[TokenLogprobs]]


def build(
    checkpoint: Path,
    *,
    is_tight: bool = False,
    has_attention: bool = True,
    folder: Path | None = None,
) -> Engine:
    config = EngineConfig(
        ModelConfig(str(checkpoint), device="cpu", dtype=ModelDtype.BFLOAT16),
        memory=MemoryConfig(
            block_size=BLOCK_SIZE,
            num_recurrent_states=12 if is_tight else 150,
            kv_cache_tokens=(300 if is_tight else 6000) if has_attention else None,
            prefix_cache_dir=None if folder is None else str(folder),
            prefix_cache_bytes=None if folder is None else 1 << 28,
            swap_space=SWAP_GIB if is_tight else 0.0,
        ),
        scheduling=SchedulingConfig(
            max_model_len=96,
            max_num_seqs=NUM_TOGETHER,
            max_num_batched_tokens=48 if is_tight else 1024,
            preemption_mode=PreemptionMode.SWAP if is_tight else PreemptionMode.AUTO,
        ),
    )
    engine, _ = build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
    return engine


def said(engine: Engine, prompts: dict[str, list[int]]) -> dict[str, Said]:
    """The outputs of requests that come together, with the log probabilities of each token."""
    found: dict[str, Said] = {name: ([], []) for name in prompts}
    for name, prompt in prompts.items():
        sampling = Sampling(temperature=0.0, num_logprobs=3)
        assert engine.submit(NewRequest(name, tuple(prompt), sampling, Stopping(NUM_NEW))) is None
    while engine.has_work:
        for delta in engine.step().deltas:
            tokens, logprobs = found[delta.request_id]
            tokens += delta.token_ids
            logprobs += delta.logprobs
    return found


@long_but_for(IN_EVERY_RUN, "family", FAMILIES)
def test_the_same_is_said_to_the_bit(family: str, references: References) -> None:
    library_with_products()
    checkpoint = references.checkpoint(family)
    has_attention = family not in ("mamba", "mamba2")
    everyone = {str(index): prompt for index, prompt in enumerate(PROMPTS)}
    engine = build(checkpoint, has_attention=has_attention)
    anew = said(engine, everyone)
    hits = engine.stats.num_prefix_hits
    assert said(engine, everyone) == anew, "over snapshots, in a batch of 32"
    assert engine.stats.num_prefix_hits > hits
    for name in list(everyone)[::5]:
        assert said(engine, {name: everyone[name]}) == {name: anew[name]}, "alone, over a snapshot"
    engine.reset_prefix_cache()
    for name in list(everyone)[::7]:
        assert said(engine, {name: everyone[name]}) == {name: anew[name]}, "alone, anew"
    tight = build(checkpoint, is_tight=True, has_attention=has_attention)
    assert said(tight, everyone) == anew, "in chunks, and resumed after a swap"
    assert not has_attention or tight.stats.num_swaps > 0


@pytest.mark.parametrize("family", IN_EVERY_RUN[:1])
def test_a_turn_goes_on_over_the_snapshot_of_an_output_to_the_bit(
    family: str, references: References
) -> None:
    library_with_products()
    checkpoint = references.checkpoint(family)
    engine = build(checkpoint)
    prompt = PROMPTS[0][:30]
    tokens, _ = said(engine, {"first": prompt})["first"]
    turn = [*prompt, *tokens, 5, 6, 7]
    hits = engine.stats.num_prefix_hits
    over = said(engine, {"turn": turn})
    assert engine.stats.num_prefix_hits - hits >= len(prompt) + len(tokens) - BLOCK_SIZE
    assert over == said(build(checkpoint), {"turn": turn})


@long_but_for(IN_EVERY_RUN[:1], "family", FAMILIES)
def test_a_state_from_disk_is_the_same_to_the_bit(
    family: str, references: References, tmp_path: Path
) -> None:
    library_with_products()
    checkpoint = references.checkpoint(family)
    has_attention = family not in ("mamba", "mamba2")
    asked = {str(index): prompt for index, prompt in enumerate(PROMPTS[:6])}
    anew = said(build(checkpoint, has_attention=has_attention), asked)
    for is_stored in (False, True):
        engine = build(checkpoint, has_attention=has_attention, folder=tmp_path)
        try:
            assert said(engine, asked) == anew
            stats = engine.disk_stats
            assert stats is not None and (stats.num_loaded_tokens > 100) == is_stored
        finally:
            engine.close()
