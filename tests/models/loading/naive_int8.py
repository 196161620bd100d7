"""A second weight format: bytes with a float32 scale for each row, as torch has them. It is what a
new format must bring, and is registered in tests alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.formats.weight_format import KernelOptions, WeightFormat
from quire.models.native.packed_weight import PackedWeight, join
from quire.models.weights.weight_kernel import WeightOutline

SCALE_BYTES = 4


@dataclass(frozen=True)
class NaiveInt8Kernel:
    """Dequantises the whole weight for each product."""

    @property
    def num_bits(self) -> int:
        return 8

    @property
    def panel_rows(self) -> int:
        return 1

    @property
    def is_exact(self) -> bool:
        return False

    def takes(self, weight: Tensor) -> bool:
        return weight.is_floating_point() and weight.shape[1] % weight.itemsize == 0

    def pack(self, weight: Tensor) -> PackedWeight:
        """`packed` is [N, 1, 1, bytes of a row / itemsize]: the row's scale, then its numbers."""
        wide = weight.float()
        scales = wide.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        rows = torch.cat([scales.view(torch.int8), (wide / scales).round().to(torch.int8)], 1)
        return PackedWeight(rows.view(weight.dtype)[:, None, None], *weight.shape)

    def planned_bytes(self, weight: WeightOutline) -> int | None:
        return weight.num_rows * (SCALE_BYTES + weight.num_columns)

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight | None:
        return join(weights, self.panel_rows)

    def unpack(self, weight: PackedWeight) -> Tensor:
        return _dequantised(weight).to(weight.packed.dtype)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        wide = None if bias is None else bias.float()
        return linear(x.float(), _dequantised(weight), wide).to(x.dtype)

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        return self.unpack(weight)[indices]


def _dequantised(weight: PackedWeight) -> Tensor:
    """Return W [N, K] in float32."""
    rows = weight.packed.flatten(1).view(torch.int8)
    scales = rows[:, :SCALE_BYTES].contiguous().view(torch.float32)
    return rows[:, SCALE_BYTES:].float() * scales


def _why_not(options: KernelOptions, device: torch.device) -> str | None:
    return None if device.type == "cpu" else f"is naive, and not for {device}"


def _kernels(options: KernelOptions) -> ModelKernels:
    return ModelKernels((NaiveInt8Kernel(),), disabled=options.disabled)


NAIVE_INT8 = WeightFormat(why_not=_why_not, kernels=_kernels)
