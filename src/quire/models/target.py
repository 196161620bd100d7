"""The target of a load: the dtype, the device, the kernels and the number of ranks."""

from typing import NamedTuple

import torch

from quire.models.config import ModelDtype
from quire.models.layers.model_kernels import ModelKernels


class Target(NamedTuple):
    """The dtype that a model is loaded in, the device, and the kernels; None means that torch
    computes. Each of `num_ranks` processes has its share of the weights on a device of its own."""

    dtype: ModelDtype
    device: torch.device
    kernels: ModelKernels | None = None
    num_ranks: int = 1
