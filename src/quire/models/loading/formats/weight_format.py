"""The parts of a weight format of `--quantization`.

A new format is a file with a `WeightKernel` (`layers/weight_kernel.py`) and a `WeightFormat`, and a
line in `Quantization` that says where that one lies. Nothing else knows the format by name: weights
are packed by its kernels, and the model is refused if its logits then differ too much
(`quantised.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from quire.models.config import LinearBackend, ModelDtype, Quantization
from quire.models.layers.model_kernels import ModelKernels
from quire.models.optimizations import Disabled


class KernelOptions(NamedTuple):
    """The options `--quantization`, `--linear-backend`, `--dtype` and `--disable-optimizations`."""

    quantization: Quantization = Quantization.NONE
    linear_backend: LinearBackend = LinearBackend.AUTO
    dtype: ModelDtype = ModelDtype.AUTO
    disabled: Disabled = ()


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One weight format, as its line in `Quantization` names it.

    why_not: returns why it cannot be had with these options on that device, in words that follow
        its name, or None if it can.
    kernels: returns the kernels that quantise weights and multiply by them, where it can be had;
        none of them is exact.
    """

    why_not: Callable[[KernelOptions, torch.device], str | None]
    kernels: Callable[[KernelOptions], ModelKernels]
