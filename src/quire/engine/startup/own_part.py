"""The part of a machine that one of several engines of a model has: on a CPU so much of its threads
and memory, or the GPU of its number.
"""

from dataclasses import replace

import torch

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig
from quire.engine.startup.placement import choose_device


def own_part(config: EngineConfig) -> EngineConfig:
    """Return the configuration of one of several engines with what is its own: of GPUs the one that
    is as many behind the first as the engine's number says; of a CPU threads, and memory unless
    that of K and V is given by itself. Raises ValueError where there are too few GPUs."""
    size = config.parallel.data_parallel_size
    if size == 1:
        return config
    device = choose_device(config.model.device)
    if device.type == "cuda":
        index = _own_gpu(device.index or 0, torch.cuda.device_count(), config)
        return replace(config, model=replace(config.model, device=f"cuda:{index}"))
    model = _with_threads(config.model, torch.get_num_threads() // size)
    return replace(config, model=model, memory=_with_share(config.memory, size))


def _own_gpu(first: int, num_gpus: int, config: EngineConfig) -> int:
    size = config.parallel.data_parallel_size
    if first + size > num_gpus:
        raise ValueError(
            f"--data-parallel-size is {size}, for which GPUs {first} to {first + size - 1} are "
            f"taken, but torch finds {num_gpus} here"
        )
    return first + config.data_parallel_rank


def _with_threads(model: ModelConfig, num_threads: int) -> ModelConfig:
    if model.num_threads is not None:
        return model
    return replace(model, num_threads=max(num_threads, 1))


def _with_share(memory: MemoryConfig, size: int) -> MemoryConfig:
    if memory.budget.is_explicit:
        return memory
    return replace(memory, gpu_memory_utilization=memory.memory_share / size)
