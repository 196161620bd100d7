"""Decides the device and dtype of a model, and the share of a machine for each of its engines."""

from dataclasses import dataclass, replace

import torch

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig
from quire.models.config import ModelDtype
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.formats.weight_format import KernelOptions
from quire.models.loading.kernels import choose_kernels, compute_dtype


@dataclass(frozen=True, slots=True)
class Placement:
    """The device on which a model computes, and how; `kernels` is None where torch's are taken."""

    device: torch.device
    dtype: ModelDtype
    kernels: ModelKernels | None


def choose_placement(config: ModelConfig, rank: int = 0) -> Placement:
    """Return the placement that is configured, with `auto` decided by the machine; a dtype that
    depends on the checkpoint stays `auto`. Raises ValueError for what cannot be had here."""
    device = _device_of_rank(choose_device(config.device), config, rank)
    options = KernelOptions(
        config.quantization, config.linear_backend, config.dtype, config.disable_optimizations
    )
    kernels = choose_kernels(options, device)
    return Placement(device, compute_dtype(options, kernels), kernels)


def prepare_threads_and_device(device: torch.device, config: ModelConfig) -> None:
    """Make `device` that of this process's kernels and streams, and let torch have the configured
    number of threads; where none is given, ranks share those of the machine."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    elif config.tensor_parallel_size > 1:
        torch.set_num_threads(max(torch.get_num_threads() // config.tensor_parallel_size, 1))


def choose_device(name: str) -> torch.device:
    """Return the device of a name; `auto` is the first GPU if there is one, else the CPU. Raises
    ValueError for a device that does not exist."""
    num_gpus = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if num_gpus else "cpu"
    if name == "cpu":
        return torch.device(name)
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (name == kind or number.isdecimal()):
        raise ValueError(f"--device is {name!r}: pass auto, cpu, cuda or cuda:N")
    index = int(number or 0)
    if index >= num_gpus:
        raise ValueError(
            f"--device is {name}, but torch {torch.__version__} finds {num_gpus or 'no'} GPUs "
            "here: pass auto or cpu, or install torch for CUDA"
        )
    return torch.device(kind, index)


def own_part(config: EngineConfig) -> EngineConfig:
    """Return the configuration of one of several engines with its share: the GPUs after those of
    earlier engines, or a part of the CPU's threads, and of its memory unless the KV size is fixed.
    Raises ValueError if there are too few GPUs."""
    size = config.parallel.data_parallel_size
    if size == 1:
        return config
    num_ranks = config.model.tensor_parallel_size
    device = choose_device(config.model.device)
    if device.type == "cuda":
        index = _own_gpu(device.index or 0, torch.cuda.device_count(), config)
        return replace(config, model=replace(config.model, device=f"cuda:{index}"))
    model = _with_threads(config.model, torch.get_num_threads() // (size * num_ranks))
    return replace(config, model=model, memory=_with_share(config.memory, size))


def _own_gpu(first: int, num_gpus: int, config: EngineConfig) -> int:
    """Return the first GPU of an engine."""
    size, num_ranks = config.parallel.data_parallel_size, config.model.tensor_parallel_size
    last = first + size * num_ranks - 1
    if last >= num_gpus:
        ranks = f" and --tensor-parallel-size {num_ranks}" if num_ranks > 1 else ""
        raise ValueError(
            f"--data-parallel-size is {size}{ranks}, for which GPUs {first} to {last} are taken, "
            f"but torch finds {num_gpus} here"
        )
    return first + config.data_parallel_rank * num_ranks


def _with_threads(model: ModelConfig, num_threads: int) -> ModelConfig:
    if model.num_threads is not None:
        return model
    return replace(model, num_threads=max(num_threads, 1))


def _with_share(memory: MemoryConfig, size: int) -> MemoryConfig:
    if memory.budget.is_explicit:
        return memory
    return replace(memory, gpu_memory_utilization=memory.memory_share / size)


def _device_of_rank(device: torch.device, config: ModelConfig, rank: int) -> torch.device:
    """Return the device of a rank where `device` is that of rank 0: ranks on GPUs have one each,
    side by side. Raises ValueError where there are too few."""
    num_ranks = config.tensor_parallel_size
    if device.type == "cpu" or num_ranks == 1:
        return device
    first = device.index or 0
    num_gpus = torch.cuda.device_count()
    if first + num_ranks > num_gpus:
        raise ValueError(
            f"--tensor-parallel-size is {num_ranks}, for which GPUs {first} to "
            f"{first + num_ranks - 1} are taken, but torch finds {num_gpus} here: pass a smaller "
            "size, or --device cpu"
        )
    return torch.device(device.type, first + rank)
