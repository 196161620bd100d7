"""Chooses the kernels of a model's recurrent layers; triton is imported only where they are its."""

import logging
from collections.abc import Iterable
from functools import cache

import torch

from quire.cache.spec import StateSpec
from quire.models.config import AttentionBackendName, KVOptions
from quire.models.native import library
from quire.models.recurrent.kernels import RecurrentKernels
from quire.models.recurrent.native import NativeRecurrentKernels
from quire.models.recurrent.native_calls import NATIVE_DTYPES
from quire.models.recurrent.reference.kernels import ReferenceKernels
from quire.models.recurrent.triton.support import why_not_recurrent

logger = logging.getLogger(__name__)


def choose_recurrent_kernels(
    device: torch.device, dtype: torch.dtype, states: Iterable[StateSpec], options: KVOptions
) -> RecurrentKernels:
    """Return the kernels for a model that computes in `dtype` and keeps `states`: C++ on a CPU, if
    they were built, Triton's on a GPU, and else the twin in torch. On a CPU whose attention runs in
    Triton's interpreter these kernels do too."""
    if device.type == "cpu" and options.attention is not AttentionBackendName.TRITON:
        built = library() if dtype in NATIVE_DTYPES else None
        if built is not None:
            return NativeRecurrentKernels(built.without(options.disabled))
        return ReferenceKernels()
    why = why_not_recurrent(device, dtype, states)
    if why is None:
        from quire.models.recurrent.triton.kernels import TritonRecurrentKernels

        return TritonRecurrentKernels()
    _warn(why)
    return ReferenceKernels()


@cache
def _warn(why: str) -> None:
    """Say it once: a start chooses kernels several times, for the same reasons."""
    logger.warning("torch computes recurrent layers, token by token, and not Triton: %s", why)
