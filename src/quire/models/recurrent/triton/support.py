"""Decides whether the Triton kernels of recurrent layers can run for a model on a device; triton is
imported only for use."""

from collections.abc import Iterable

import torch

from quire.cache.spec import StateSpec
from quire.models.triton_device import why_not_device

MAX_SIZE = 256
"""The largest key of a head, and state of a channel: all of it is summed in one program."""
MAX_TAIL = 8
"""The most rows that a convolution keeps."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def why_not_recurrent(
    device: torch.device, dtype: torch.dtype, states: Iterable[StateSpec]
) -> str | None:
    """Return why the kernels cannot run on `device` over such states, in words, or None if they
    can."""
    if dtype not in DTYPES:
        return f"they compute in float32, float16 and bfloat16, not in {dtype}"
    return why_not_device(device) or next(filter(None, map(_why_not_state, states)), None)


def _why_not_state(state: StateSpec) -> str | None:
    tail, *matrices = state.shapes
    if not 1 <= tail[-1] <= MAX_TAIL:
        return f"a convolution keeps {tail[-1]} rows, they take 1 to {MAX_TAIL}"
    sizes = [size for shape in matrices for size in shape[1:]]
    if max(sizes, default=0) > MAX_SIZE:
        return f"a state has {max(sizes)} numbers in a row or column, they take {MAX_SIZE}"
    return None
