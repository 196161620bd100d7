"""Chooses the kernels of a model's recurrent layers."""

import torch

from quire.models.native import library
from quire.models.optimizations import Disabled
from quire.models.recurrent.kernels import RecurrentKernels
from quire.models.recurrent.native import NativeRecurrentKernels
from quire.models.recurrent.native_calls import NATIVE_DTYPES
from quire.models.recurrent.reference.kernels import ReferenceKernels


def choose_recurrent_kernels(
    device: torch.device, dtype: torch.dtype, disabled: Disabled
) -> RecurrentKernels:
    """Return the C++ kernels for a model that computes in `dtype` on a CPU, if they were built, and
    else the twin in torch."""
    is_native = device.type == "cpu" and dtype in NATIVE_DTYPES
    built = library() if is_native else None
    return ReferenceKernels() if built is None else NativeRecurrentKernels(built.without(disabled))
