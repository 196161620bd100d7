"""From a configuration to blocks: the receipt adds up, and what cannot be is refused with the
numbers.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from quire.cache.sizing import BLOCK_SIZES, TooLittleMemory
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.messages import EngineFacts, LayerGroupFacts
from quire.engine.startup import build_model
from quire.engine.startup.build import build_engine
from quire.engine.startup.receipt import receipt_text
from quire.models.config import (
    QUANTISED,
    SCALE_BYTES,
    AttentionBackendName,
    KVCacheDtype,
    ModelDtype,
)
from quire.models.loading import preview
from quire.scheduler.cost import PreemptionMode
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED
from tests.models.reference import References

LAYERS, HEADS, HEAD_DIM, FLOAT_BYTES = 3, 2, 8, 4
SCHEDULING = SchedulingConfig(max_num_seqs=4)
TOKEN_BYTES = LAYERS * 2 * HEADS * HEAD_DIM * FLOAT_BYTES


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = save_checkpoint(SERVED["llama"], tmp_path_factory.mktemp("checkpoint"))
    return EngineConfig(
        ModelConfig(str(folder), device="cpu", dtype=ModelDtype.FLOAT32),
        scheduling=SCHEDULING,
    )


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
    assert facts.decode == "eager"
    assert receipt["weights"] + receipt["kv"] + receipt["unused"] <= receipt["device"]
    phases = ["imports", "files", "outline", "load", "vocabulary", "profile", "kv_cache"]
    assert list(facts.startup_s) == phases
    phases = list(dict.fromkeys(phase for phase, _, _ in said))
    assert phases == ["outline", "weights", "probe", "profile"]
    assert ("outline", 1, 1) in said and ("profile", 1, 1) in said


def test_no_more_blocks_than_can_be_of_use(config: EngineConfig) -> None:
    facts, _ = build(config)
    assert (facts.num_blocks - 1) * facts.block_size == 2 * 4 * facts.max_model_len
    facts, _ = build(replace(config, memory=MemoryConfig(enable_prefix_caching=False)))
    assert (facts.num_blocks - 1) * facts.block_size == 4 * facts.max_model_len


def test_a_step_is_as_large_as_the_device_likes_it(config: EngineConfig) -> None:
    facts, _ = build(config)
    assert facts.max_num_batched_tokens == 512
    assert "memory would allow" in facts.memory.why_max_num_batched_tokens
    facts, _ = build(replace(config, scheduling=replace(SCHEDULING, max_num_seqs=600)))
    assert facts.max_num_batched_tokens == 600
    facts, _ = build(replace(config, scheduling=replace(SCHEDULING, max_num_batched_tokens=77)))
    assert facts.max_num_batched_tokens == 77


def test_the_receipt_tells_what_kv_memory_holds(
    config: EngineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        facts, _ = build(replace(config, memory=MemoryConfig(kv_cache_tokens=256)))
    memory = facts.memory
    assert memory.kv_dtype == "float32"
    assert (memory.kv_tokens, memory.kv_token_bytes) == (256, TOKEN_BYTES)
    assert memory.layer_groups == (LayerGroupFacts("full_attention", None, LAYERS),)
    assert (memory.padding_share, memory.max_concurrency) == (0.0, 2.0)
    assert memory.max_model_len_fits == facts.max_model_len == 128
    assert receipt_text(facts) in caplog.text
    assert "reachable context: 128 tokens" in caplog.text
    assert "before the load: weights" in caplog.text


def test_a_warning_level_leaves_the_receipt_out(
    config: EngineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        build(config)
    assert "receipt" not in caplog.text


@pytest.mark.parametrize("dtype", QUANTISED)
def test_kv_of_a_byte_an_element_gives_more_blocks(
    config: EngineConfig, dtype: KVCacheDtype
) -> None:
    num_bytes = 100 * 16 * TOKEN_BYTES
    facts, _ = build(
        replace(config, memory=MemoryConfig(kv_cache_dtype=dtype, kv_cache_memory_bytes=num_bytes))
    )
    token_bytes = LAYERS * 2 * HEADS * (HEAD_DIM + SCALE_BYTES)
    assert facts.num_blocks == num_bytes // (16 * token_bytes) > 300
    assert (facts.memory.kv_dtype, facts.dtype) == (dtype, "float32")


def test_what_computes_experts_is_told(
    config: EngineConfig, references: References, caplog: pytest.LogCaptureFixture
) -> None:
    assert build(config)[0].experts == "none"
    mixture = ModelConfig(str(references.checkpoint("qwen3_moe")), device="cpu")
    with caplog.at_level("INFO"):
        facts, _ = build(EngineConfig(mixture, scheduling=SCHEDULING))
    assert facts.experts == "transformers"
    assert "experts: transformers" in caplog.text


def test_groups_can_be_switched_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = save_checkpoint(SERVED["qwen2, windows in the upper layers"], tmp_path)
    config = EngineConfig(ModelConfig(str(folder), device="cpu"), scheduling=SCHEDULING)
    whole = replace(config, memory=MemoryConfig(disable_hybrid_kv_cache_manager=True))
    with caplog.at_level("WARNING"):
        facts, _ = build(whole)
    assert set(facts.memory.layer_groups) == {
        LayerGroupFacts("full_attention", None, 1),
        LayerGroupFacts("sliding_window", 9, 2, is_kept_whole=True),
    }
    each = facts.memory.kv_token_bytes // 3
    memory = facts.memory
    assert (memory.passed_token_bytes, memory.unseen_token_bytes) == (3 * each, 2 * each)
    assert memory.why_kept_whole == "--disable-hybrid-kv-cache-manager is set"
    assert f"hold {3 * each:,} bytes, where {each:,} would do" in caplog.text
    caplog.clear()
    facts, _ = build(config)
    assert {(group.kind, group.reach) for group in facts.memory.layer_groups} == {
        ("full_attention", None),
        ("sliding_window", 9),
    }
    assert not any(group.is_kept_whole for group in facts.memory.layer_groups)
    assert "keep every token" not in caplog.text


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_every_block_size_is_served(config: EngineConfig, block_size: int) -> None:
    facts, _ = build(
        replace(config, memory=MemoryConfig(block_size=block_size, kv_cache_tokens=256))
    )
    assert (facts.block_size, facts.num_blocks) == (block_size, 256 // block_size + 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: replace(config, memory=MemoryConfig(num_gpu_blocks_override=5)),
        lambda config: replace(config, memory=MemoryConfig(kv_cache_tokens=64)),
        lambda config: replace(
            config, memory=MemoryConfig(kv_cache_memory_bytes=5 * 16 * TOKEN_BYTES)
        ),
    ],
    ids=["blocks", "tokens", "bytes"],
)
def test_too_little_memory_is_said_before_weights_are_read(
    config: EngineConfig,
    change: Callable[[EngineConfig], EngineConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And in the words of the check after the load."""
    said_early = refusal_of(change(config))
    monkeypatch.setattr(build_model, "check_before_load", lambda *_: None)
    said_late = refusal_of(change(config))
    assert said_early.phases == ["outline"]
    assert said_late.phases == ["outline", "weights", "probe", "profile"]
    assert said_early.text == said_late.text
    assert "length that fits is 64: pass --max-model-len 64" in said_late.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda config: replace(config, memory=MemoryConfig(num_gpu_blocks_override=10**12)),
            "less by --num-gpu-blocks-override",
        ),
        (
            lambda config: replace(config, memory=MemoryConfig(kv_cache_memory_bytes=900 << 40)),
            "less by --kv-cache-memory-bytes",
        ),
        (
            lambda config: replace(config, scheduling=replace(SCHEDULING, max_num_seqs=10**9)),
            "--max-num-batched-tokens and --max-num-seqs",
        ),
        (
            lambda config: replace(
                config, scheduling=replace(SCHEDULING, max_num_batched_tokens=10**12)
            ),
            "steps of 1000000000000 tokens need",
        ),
        (
            lambda config: replace(config, memory=MemoryConfig(swap_space=1e6)),
            r"--swap-space is 1e.*the host has only .* GiB available",
        ),
        (
            lambda config: replace(
                config, scheduling=replace(SCHEDULING, preemption_mode=PreemptionMode.SWAP)
            ),
            "--swap-space is 0 GiB, less than one",
        ),
        (
            lambda config: replace(
                config,
                model=replace(
                    config.model,
                    attention_backend=AttentionBackendName.CPU,
                    dtype=ModelDtype.FLOAT16,
                ),
            ),
            "--attention-backend cpu cannot be had",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_weights_are_read(
    config: EngineConfig, change: Callable[[EngineConfig], EngineConfig], said: str
) -> None:
    phases: list[str] = []
    with pytest.raises((TooLittleMemory, ValueError), match=said):
        build_engine(
            change(config),
            on_progress=lambda phase, *_: phases.append(phase),
            clock=time.monotonic,
        )
    assert set(phases) == {"outline"}


class Said(NamedTuple):
    text: str
    phases: list[str]


def refusal_of(config: EngineConfig) -> Said:
    phases: list[str] = []
    with pytest.raises(TooLittleMemory) as refused:
        build_engine(
            config, on_progress=lambda phase, *_: phases.append(phase), clock=time.monotonic
        )
    return Said(str(refused.value), list(dict.fromkeys(phases)))


def test_a_model_that_cannot_be_outlined_is_checked_after_the_load(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preview, "layout_from_config", lambda *_, num_ways: None)
    with caplog.at_level("INFO"):
        said = refusal_of(replace(config, memory=MemoryConfig(kv_cache_tokens=64)))
    assert "weights" in said.phases
    assert "memory is not checked before the load" in caplog.text


def test_a_step_that_overflows_the_device_is_refused_in_words(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflow(*_: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(build_model, "peak_bytes", overflow)
    with pytest.raises(TooLittleMemory, match="step of 128 tokens .* --max-num-batched-tokens"):
        build(config)


def test_the_toy_has_a_receipt_too() -> None:
    facts, _ = build(EngineConfig(ModelConfig("toy"), memory=MemoryConfig(kv_cache_tokens=4096)))
    assert (facts.num_blocks, facts.memory.kv_tokens, facts.memory.max_concurrency) == (
        257,
        4096,
        2.0,
    )


def test_too_few_blocks_name_the_length_that_fits(config: EngineConfig) -> None:
    with pytest.raises(TooLittleMemory, match="--max-model-len 64"):
        build(replace(config, memory=MemoryConfig(num_gpu_blocks_override=5)))
    facts, _ = build(
        replace(
            config,
            memory=MemoryConfig(num_gpu_blocks_override=5),
            scheduling=replace(SCHEDULING, max_model_len=64),
        )
    )
    assert (facts.num_blocks, facts.max_model_len) == (5, 64)


def test_a_length_beyond_the_model_is_refused(config: EngineConfig) -> None:
    with pytest.raises(ValueError, match="--max-model-len is 129, .* at most 128"):
        build(replace(config, scheduling=replace(SCHEDULING, max_model_len=129)))


@pytest.mark.parametrize("device", ["cuda:99", "tpu", "cuda:", "cuda:-1", "cpu:0"])
def test_a_device_that_is_not_there_is_refused(config: EngineConfig, device: str) -> None:
    with pytest.raises(ValueError, match=f"--device is '?{device}'?"):
        build(replace(config, model=replace(config.model, device=device)))


def test_a_budget_below_the_sequences_is_refused(config: EngineConfig) -> None:
    with pytest.raises(ValueError, match="--max-num-batched-tokens is 3, must be at least"):
        build(replace(config, scheduling=replace(SCHEDULING, max_num_batched_tokens=3)))


def test_swap_space_is_asked_for_in_gib(config: EngineConfig) -> None:
    facts, _ = build(
        replace(
            config,
            memory=MemoryConfig(swap_space=0.01),
            scheduling=replace(SCHEDULING, preemption_mode=PreemptionMode.SWAP),
        )
    )
    assert facts.num_host_blocks == int(0.01 * 2**30) // (16 * TOKEN_BYTES)
    lines = {line.kind: line.num_bytes for line in facts.receipt}
    assert lines["swap"] == facts.num_host_blocks * 16 * TOKEN_BYTES
    assert build(config)[0].num_host_blocks == 0
