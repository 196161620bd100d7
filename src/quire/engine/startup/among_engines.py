"""The part of a machine that one of several engines of a model has: on a CPU so much of its threads
and memory, or the GPU of its number.
"""

from dataclasses import replace

import torch

from quire.engine.config import EngineConfig
from quire.engine.startup.placement import choose_device


def own_device(config: EngineConfig) -> torch.device:
    """Return the device of an engine: the one that is configured, or of GPUs the one that is as
    many further as the engine's number. Raises ValueError for a device that does not exist."""
    first, size = choose_device(config.model.device), config.parallel.data_parallel_size
    if first.type != "cuda" or size == 1:
        return first
    index, num_gpus = first.index or 0, torch.cuda.device_count()
    if index + size > num_gpus:
        raise ValueError(
            f"--data-parallel-size is {size}, which takes GPUs {index} to {index + size - 1}, but "
            f"torch finds {num_gpus} here"
        )
    return torch.device("cuda", index + config.data_parallel_rank)


def own_part(config: EngineConfig, device: torch.device) -> EngineConfig:
    """Return the configuration with the engine's part of a CPU: threads and, unless KV memory is
    given by itself, memory. A GPU is its own."""
    size = config.parallel.data_parallel_size
    if device.type == "cuda" or size == 1:
        return config
    model, memory = config.model, config.memory
    if model.num_threads is None:
        model = replace(model, num_threads=max(torch.get_num_threads() // size, 1))
    if not memory.budget.is_explicit:
        memory = replace(memory, gpu_memory_utilization=memory.memory_share / size)
    return replace(config, model=model, memory=memory)
