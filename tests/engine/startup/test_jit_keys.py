"""A start compiles every kernel that requests will want: none is compiled while they wait."""

import random

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from quire.engine.config import MemoryConfig, ModelConfig
from quire.engine.engine import Engine
from quire.models.config import CUDAGraphMode
from tests.engine.startup.captured_starts import StandInGPU, config_of, start, texts_of
from tests.engine.startup.jit_keys import launched_keys
from tests.long import long_but_for
from tests.models.reference import BLOCK_SIZE, MAX_LEN, References

TIGHT = MemoryConfig(kv_cache_tokens=MAX_LEN + 4 * BLOCK_SIZE, swap_space=0.01)
NUM_ROUNDS = 4
CASES = (
    ("llama", CUDAGraphMode.FULL_AND_PIECEWISE),
    ("gpt_oss", CUDAGraphMode.NONE),
    ("llama", CUDAGraphMode.NONE),
    ("gpt_oss", CUDAGraphMode.FULL_AND_PIECEWISE),
    ("qwen3_5_text", CUDAGraphMode.FULL_AND_PIECEWISE),
    ("jamba", CUDAGraphMode.NONE),
    ("bamba", CUDAGraphMode.NONE),
)


def serve(engine: Engine, seed: int) -> None:
    """Up to six prompts at once, of any length, so that steps have chunks and single tokens."""
    drawn = random.Random(seed)
    lengths = [drawn.choice((1, 2, 5, 16, 17, 40)) for _ in range(drawn.randint(1, 6))]
    prompts = [[drawn.randrange(100) for _ in range(length)] for length in lengths]
    texts_of(engine, prompts, drawn.randint(1, 5))


@long_but_for(CASES[:1], "family, mode", CASES)
def test_no_kernel_is_compiled_while_requests_wait(
    family: str, mode: CUDAGraphMode, references: References
) -> None:
    model = ModelConfig("", cudagraph_mode=mode)
    config = config_of(references.checkpoint(family), model, TIGHT)
    with launched_keys() as at_start:
        engine, _ = start(config, StandInGPU())
    with launched_keys() as later:
        for seed in range(NUM_ROUNDS):
            serve(engine, seed)
    engine.close()
    assert "attend_chunks" in {name for name, _ in later}
    assert later - at_start == set()
