"""From a configuration to blocks: the receipt adds up, and what cannot be is refused with the
numbers.
"""

import time
from dataclasses import replace

import pytest

from quire.cache.sizing import TooLittleMemory
from quire.engine.build import build_engine
from quire.engine.config import EngineConfig
from quire.engine.messages import EngineFacts
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED

LAYERS, HEADS, HEAD_DIM, FLOAT_BYTES = 3, 2, 8, 4
TOKEN_BYTES = LAYERS * 2 * HEADS * HEAD_DIM * FLOAT_BYTES


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = save_checkpoint(SERVED["llama"], tmp_path_factory.mktemp("checkpoint"))
    return EngineConfig(str(folder), device="cpu", dtype="float32", max_num_seqs=4)


def build(config: EngineConfig) -> tuple[EngineFacts, list[tuple[str, int, int]]]:
    said: list[tuple[str, int, int]] = []
    _, facts = build_engine(
        config, on_progress=lambda *step: said.append(step), clock=time.monotonic
    )
    return facts, said


def test_the_receipt_and_the_phases(config: EngineConfig) -> None:
    facts, said = build(config)
    receipt = {line.kind: line.num_bytes for line in facts.receipt}
    assert receipt["kv"] == facts.num_blocks * facts.block_size * TOKEN_BYTES
    assert receipt["weights"] > 0 and receipt["unused"] >= 0
    assert receipt["weights"] + receipt["kv"] + receipt["unused"] <= receipt["device"]
    assert list(facts.startup_s) == ["load", "profile", "kv_cache"]
    assert ("profile", 1, 1) in said and any(phase == "weights" for phase, _, _ in said)


def test_no_more_blocks_than_can_be_of_use(config: EngineConfig) -> None:
    facts, _ = build(config)
    assert (facts.num_blocks - 1) * facts.block_size == 2 * 4 * facts.max_model_len
    facts, _ = build(replace(config, enable_prefix_caching=False))
    assert (facts.num_blocks - 1) * facts.block_size == 4 * facts.max_model_len


def test_bytes_for_kv_become_whole_blocks(config: EngineConfig) -> None:
    block_bytes = 16 * TOKEN_BYTES
    facts, _ = build(replace(config, kv_cache_memory_bytes=11 * block_bytes - 1, max_model_len=100))
    assert facts.num_blocks == 10


def test_too_few_blocks_name_the_length_that_fits(config: EngineConfig) -> None:
    with pytest.raises(TooLittleMemory, match="--max-model-len 64"):
        build(replace(config, num_gpu_blocks_override=5))
    facts, _ = build(replace(config, num_gpu_blocks_override=5, max_model_len=64))
    assert (facts.num_blocks, facts.max_model_len) == (5, 64)


def test_a_length_beyond_the_model_is_refused(config: EngineConfig) -> None:
    with pytest.raises(ValueError, match="--max-model-len is 129, .* at most 128"):
        build(replace(config, max_model_len=129))


def test_a_budget_below_the_sequences_is_refused(config: EngineConfig) -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens is 3, must be at least"):
        build(replace(config, max_num_batched_tokens=3))
