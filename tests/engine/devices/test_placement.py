"""Several engines divide a CPU, and each has a GPU of its own."""

from dataclasses import replace

import pytest
import torch

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, ParallelConfig
from quire.engine.devices.placement import choose_placement, own_part

CPU = EngineConfig(ModelConfig("any", device="cpu"), parallel=ParallelConfig(2))


def with_memory(memory: MemoryConfig) -> EngineConfig:
    return replace(CPU, memory=memory)


def test_one_engine_has_all() -> None:
    config = replace(CPU, parallel=ParallelConfig(1))
    assert own_part(config) is config


def test_threads_and_memory_of_a_cpu_are_divided() -> None:
    own = own_part(CPU)
    assert own.model.num_threads == max(torch.get_num_threads() // 2, 1)
    divided = own_part(replace(CPU, model=replace(CPU.model, tensor_parallel_size=2)))
    assert divided.model.num_threads == max(torch.get_num_threads() // 4, 1)
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


@pytest.mark.parametrize(("device", "first"), [("cuda", 0), ("cuda:1", 1)])
def test_each_rank_of_each_engine_has_a_gpu_of_its_own(
    device: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: first + 4)
    model = ModelConfig("any", device=device, tensor_parallel_size=2)
    config = replace(CPU, model=model)
    engines = [own_part(replace(config, data_parallel_rank=number)).model for number in (0, 1)]
    gpus = [choose_placement(engine, rank).device.index for engine in engines for rank in (0, 1)]
    assert gpus == list(range(first, first + 4))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: first + 3)
    with pytest.raises(
        ValueError, match=f"2 and --tensor-parallel-size 2, .* {first} to {first + 3}"
    ):
        own_part(config)
    with pytest.raises(ValueError, match=f"size is 4, for which GPUs {first} to {first + 3} "):
        choose_placement(replace(model, tensor_parallel_size=4))
