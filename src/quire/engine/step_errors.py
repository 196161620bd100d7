"""Classifies the errors of a step: out of memory, a dead device, or others."""

import torch

from quire.engine.failure_kind import DeviceFailed
from quire.models.graphs.capture import is_out_of_memory
from quire.scheduler.step import StepFailure


def failure_of(error: Exception) -> StepFailure:
    """Return the kind of failure of a step's error."""
    if isinstance(error, MemoryError):
        return StepFailure.OUT_OF_MEMORY
    lacks_memory = isinstance(error, RuntimeError) and is_out_of_memory(error)
    return StepFailure.OUT_OF_MEMORY if lacks_memory else StepFailure.ERROR


def check_device(device: torch.device, error: Exception) -> None:
    """Compute something small on the device that was in use when `error` was raised, and free the
    memory that torch keeps. Raises DeviceFailed where it cannot: an error of a kernel stays with a
    CUDA context for ever.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.empty_cache()
        torch.ones(1, device=device).add_(1)
        torch.cuda.synchronize(device)
    except RuntimeError as dead:
        raise DeviceFailed(f"the device computes nothing any more: {error}") from dead
