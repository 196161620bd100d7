"""Chooses the sampler of a device: the C++ kernel on a CPU that has it, Triton's on a GPU that it
runs on, else torch; triton is imported only there."""

import torch
from torch import Tensor

from quire.engine.sampling.logits_processor import ProcessorContext
from quire.engine.sampling.native_sampler import NativeSampler
from quire.engine.sampling.sampler import Sampler
from quire.engine.sampling.sampling_state import build_sampling_state
from quire.engine.sampling.tiles import working_bytes
from quire.engine.sampling.torch_sampler import TorchSampler
from quire.models.native import library
from quire.models.native.sampling.sampling import SamplingKernel
from quire.models.optimizations import Disabled, Optimization
from quire.models.triton_device import why_not_device
from quire.scheduler.request import Sampling, Stopping

WARMING = (Sampling(), Sampling(logit_bias=((0, 1.0),)))
"""Without and with an edit of logits, for each of which a GPU has a kernel."""


def build_sampler(vocab_size: int, device: torch.device, disabled: Disabled = ()) -> Sampler:
    """Return the fastest sampler for logits of `vocab_size` tokens on `device` that the enabled
    optimizations allow."""
    kernel = _kernel(vocab_size, device, disabled)
    if kernel is not None:
        return NativeSampler(kernel)
    is_off = device.type == "cpu" or Optimization.NATIVE_SAMPLER in disabled
    if is_off or not torch.cuda.is_available() or why_not_device(device) is not None:
        return TorchSampler(vocab_size, device)
    return fused_sampler(vocab_size, device)


def fused_sampler(vocab_size: int, device: torch.device) -> Sampler:
    """Return the sampler of one kernel in Triton, which runs on `device`."""
    from quire.engine.sampling.triton.fused_sampler import FusedSampler

    return TorchSampler(vocab_size, device, FusedSampler(vocab_size, device))


def warm_up_sampler(logits: Tensor, disabled: Disabled = ()) -> None:
    """Sample from the first row of `logits`, so that no request waits while kernels are compiled
    for logits like these."""
    sampler = build_sampler(logits.shape[1], logits.device, disabled)
    for sampling in WARMING:
        context = ProcessorContext(sampling, Stopping(1), [0], 1)
        sampler.sample(logits[:1], [build_sampling_state(context)]).result()


def sampler_bytes(vocab_size: int, device: torch.device, disabled: Disabled = ()) -> int:
    """Return an upper bound of the bytes that this sampler takes beside the logits."""
    kernel = _kernel(vocab_size, device, disabled)
    return working_bytes(vocab_size, device) if kernel is None else kernel.working_bytes


def _kernel(vocab_size: int, device: torch.device, disabled: Disabled) -> SamplingKernel | None:
    if device.type != "cpu" or Optimization.NATIVE_SAMPLER in disabled:
        return None
    kernels = library()
    return None if kernels is None else SamplingKernel(kernels.without(disabled), vocab_size)
