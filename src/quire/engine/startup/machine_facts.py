"""Reports the facts of this machine: torch, its GPUs, and the kernels that an engine would run."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from quire.engine.config import ModelConfig
from quire.engine.devices.memory import DeviceMemory, measure
from quire.engine.devices.placement import choose_placement
from quire.models.layers.model_kernels import ModelKernels
from quire.models.native import library


class TorchFacts(NamedTuple):
    """The installed torch. `cuda` is the version of CUDA that it was built for, None without."""

    version: str
    cuda: str | None
    num_threads: int


class GPUFacts(NamedTuple):
    """A GPU that torch can use; `capability` is its compute capability, as in `9.0`."""

    name: str
    capability: str
    memory: DeviceMemory


class KernelFacts(NamedTuple):
    """The C++ kernels that would serve a model on the CPU.

    isa: the instruction set whose kernels are called; `isas` are those that run here.
    num_threads: the threads that they run on.
    linears: the kernels of linear layers, the first that takes a weight packs it.
    parts: the other parts of a model that have kernels, in words.
    """

    isa: str
    isas: tuple[str, ...]
    num_threads: int
    linears: tuple[str, ...]
    parts: tuple[str, ...]


def torch_facts() -> TorchFacts:
    """Return the facts of the torch that is installed."""
    return TorchFacts(torch.__version__, torch.version.cuda, torch.get_num_threads())


def gpu_facts() -> tuple[GPUFacts, ...]:
    """Return the GPUs that torch finds. Raises RuntimeError where a driver does not answer."""
    return tuple(map(_gpu, range(torch.cuda.device_count())))


def _gpu(index: int) -> GPUFacts:
    device = torch.device("cuda", index)
    major, minor = torch.cuda.get_device_capability(device)
    return GPUFacts(torch.cuda.get_device_name(device), f"{major}.{minor}", measure(device))


def host_memory() -> DeviceMemory:
    """Return the memory of the machine, or of the container if that is less."""
    return measure(torch.device("cpu"))


def kernel_facts(config: ModelConfig) -> KernelFacts | None:
    """Return the kernels for the CPU under the options of `config`, None if there are none: torch's
    run then. Raises ValueError for options that this machine cannot have."""
    opened = library()
    if opened is None:
        return None
    kernels = choose_placement(config).kernels
    linears = () if kernels is None else kernels.linears
    names = tuple(type(each).__module__.rpartition(".")[2] for each in linears)
    used = opened.without(config.disable_optimizations)
    parts = () if kernels is None else tuple(_parts(kernels))
    return KernelFacts(used.isa, opened.isas, opened.num_threads, names, parts)


def _parts(kernels: ModelKernels) -> Iterator[str]:
    if kernels.fused is not None:
        yield "norms, rotary embeddings and activations"
    if kernels.decoder is not None:
        yield "all layers in one call"
