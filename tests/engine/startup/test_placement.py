"""Several engines divide a CPU, and each has a GPU of its own."""

from dataclasses import replace

import pytest
import torch

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, ParallelConfig
from quire.engine.startup.placement import own_part

CPU = EngineConfig(ModelConfig("any", device="cpu"), parallel=ParallelConfig(2))


def with_memory(memory: MemoryConfig) -> EngineConfig:
    return replace(CPU, memory=memory)


def test_one_engine_has_all() -> None:
    config = replace(CPU, parallel=ParallelConfig(1))
    assert own_part(config) is config


def test_threads_and_memory_of_a_cpu_are_divided() -> None:
    own = own_part(CPU)
    assert own.model.num_threads == max(torch.get_num_threads() // 2, 1)
    assert own.memory.memory_share == MemoryConfig().memory_share / 2
    half = own_part(with_memory(MemoryConfig(gpu_memory_utilization=0.5)))
    assert half.memory.memory_share == 0.25


def test_what_is_said_in_numbers_is_of_each_engine() -> None:
    config = with_memory(MemoryConfig(num_gpu_blocks_override=100))
    config = replace(config, model=replace(config.model, num_threads=7))
    assert own_part(config) == config


@pytest.mark.parametrize(("device", "first"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_each_engine_has_a_gpu_of_its_own(
    device: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    config = replace(CPU, model=ModelConfig("any", device=device))
    own = own_part(replace(config, data_parallel_rank=1))
    assert own.model.device == f"cuda:{first + 1}"
    assert own.memory == config.memory
    too_many = replace(config, parallel=ParallelConfig(4 - first))
    with pytest.raises(ValueError, match=f"is {4 - first}, for which GPUs {first} to 3 .* finds 3"):
        own_part(too_many)
