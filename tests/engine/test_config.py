"""What types cannot say of a configuration is checked; every option has a name of its own."""

import dataclasses

import msgspec
import pytest

from quire.engine.config import (
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    RecordingConfig,
    SchedulingConfig,
    TracingConfig,
    check_options,
)

MODEL = ModelConfig("nowhere")


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        (
            MemoryConfig(block_size=12),
            "--block-size is 12, must be one of 8, 16, 32, 64, 128, 256",
        ),
        (
            MemoryConfig(kv_cache_tokens=9, kv_cache_memory_bytes=9),
            "--kv-cache-memory-bytes and --kv-cache-tokens both say",
        ),
        (
            MemoryConfig(num_gpu_blocks_override=9, gpu_memory_utilization=0.9),
            "--num-gpu-blocks-override and --gpu-memory-utilization both say",
        ),
    ],
    ids=["block size", "tokens and bytes", "blocks and share"],
)
def test_memory_that_cannot_be_is_refused(memory: MemoryConfig, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_options(EngineConfig(MODEL, memory))


@pytest.mark.parametrize(
    ("scheduling", "said"),
    [
        (
            SchedulingConfig(max_num_batched_tokens=3, max_num_seqs=4),
            "--max-num-batched-tokens is 3, must be at least --max-num-seqs",
        ),
        (SchedulingConfig(max_model_len=1), "--max-model-len is 1, must be 2 or more"),
        (SchedulingConfig(max_num_seqs=0), "--max-num-seqs is 0, must be 1 or more"),
    ],
    ids=["budget", "length", "sequences"],
)
def test_limits_that_cannot_be_are_refused(scheduling: SchedulingConfig, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_options(EngineConfig(MODEL, scheduling=scheduling))


def test_no_two_groups_have_an_option_of_one_name() -> None:
    groups = (
        *(ModelConfig, MemoryConfig, SchedulingConfig),
        *(TracingConfig, RecordingConfig, ParallelConfig),
    )
    names = [field.name for group in groups for field in dataclasses.fields(group)]
    assert sorted(EngineConfig(MODEL).options()) == sorted(names)


@pytest.mark.parametrize(
    ("group", "option"),
    [
        ("model", "dtype"),
        ("model", "attention_backend"),
        ("model", "linear_backend"),
        ("model", "quantization"),
        ("memory", "kv_cache_dtype"),
        ("memory", "prefix_caching_hash_algo"),
        ("scheduling", "scheduling_policy"),
        ("scheduling", "preemption_mode"),
        ("tracing", "log_level"),
    ],
)
def test_a_choice_that_is_none_does_not_reach_the_engine(group: str, option: str) -> None:
    sent = msgspec.to_builtins(EngineConfig(MODEL))
    assert msgspec.convert(sent, EngineConfig) == EngineConfig(MODEL)
    sent[group][option] = "unknown"
    with pytest.raises(msgspec.ValidationError, match=f"Invalid enum value.*{group}.{option}"):
        msgspec.convert(sent, EngineConfig)
