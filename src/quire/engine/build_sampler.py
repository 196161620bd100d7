"""Which sampler a device gets: the C++ kernels' on a CPU that has them, else torch's."""

import torch

from quire.engine.native_sampler import NativeSampler
from quire.engine.sampler import Sampler
from quire.engine.torch_sampler import TorchSampler
from quire.models.native import library
from quire.models.native.sampling import SamplingKernel


def build_sampler(vocab_size: int, device: torch.device) -> Sampler:
    kernels = library() if device.type == "cpu" else None
    if kernels is None:
        return TorchSampler(vocab_size, device)
    return NativeSampler(SamplingKernel(kernels, vocab_size))
