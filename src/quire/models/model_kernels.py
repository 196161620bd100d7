"""The kernels that go under a loaded model."""

from typing import NamedTuple

from quire.models.native.decoder import DecoderKernel
from quire.models.native.fused import FusedKernels
from quire.models.native.screen import ScreenKernel
from quire.models.weight_kernel import WeightKernel


class ModelKernels(NamedTuple):
    """`fused`: for what is between the linear layers of bfloat16 models; None: torch's. `decoder`:
    for all layers at once; None: they run one by one. `screen`: for heads of which only the largest
    logits are wanted; None: they are computed whole."""

    linear: WeightKernel
    fused: FusedKernels | None = None
    decoder: DecoderKernel | None = None
    screen: ScreenKernel | None = None
