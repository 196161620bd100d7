"""NVIDIA ModelOpt: FP8, and NVFP4 with a scale in FP8 for each 16 columns.

    weight          [N, K] float8, or [N, K / 2] uint8: nibbles, the lower first
    weight_scale    FP8: one number, [N], or [N / 128, 1, K / 128, 1]; NVFP4: [N, K / 16] float8
    weight_scale_2  NVFP4: one number, which scales are multiplied by

MXFP8 and MXFP4 have scales [N, K / 32] of uint8, exponents plus 127. Activations, keys and values
are not quantised.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from quire.models.loading.published.fp4 import fp4_shape, fp4_weight, of_matrices
from quire.models.loading.published.module_parts import module_place
from quire.models.loading.published.published_format import (
    PartOutline,
    Parts,
    UnsupportedFormat,
    WeightPart,
)
from quire.models.loading.published.scaled_floats import (
    FLOATS8,
    Block,
    exponents_as_floats,
    scaled_shape,
    scaled_values,
)
from quire.models.loading.published.settings import Settings, refuse_other
from quire.models.weights.grouped_weight import GroupedWeight

PARTS: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("weight", "weight_scale", "weight_scale_2", "pre_quant_scale")}
)
IN_BLOCKS, BLOCK_SIZE = "FP8_PB_WO", 128
ALGORITHMS = (
    *("FP8", "FP8_PER_CHANNEL_PER_TOKEN", IN_BLOCKS, "MIXED_PRECISION", "MXFP8", "NVFP4"),
)


@dataclass(frozen=True, slots=True)
class ModelOptFormat:
    """All algorithms that are read: a weight tells by its dtype which one it is of. `block`: the
    rows and columns of a scale, where scales are of blocks."""

    block: Block | None

    def place(self, name: str) -> WeightPart | None:
        return module_place(name, PARTS)

    def shape(self, weight: str, parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
        if "pre_quant_scale" in parts:
            raise UnsupportedFormat("its columns have a pre_quant_scale")
        if "weight" in parts and parts["weight"].dtype in FLOATS8:
            return scaled_shape(parts, self.block)
        return fp4_shape(parts, "weight", "weight_scale_2")

    def unpacked(self, weight: str, parts: Parts) -> GroupedWeight | Tensor:
        if parts["weight"].is_floating_point():
            return scaled_values(parts, self.block)
        scales = exponents_as_floats(parts["weight_scale"])
        factor = parts.get("weight_scale_2")
        if factor is not None:
            scales = scales * of_matrices(factor, scales)
        return fp4_weight(parts["weight"], scales)


def modelopt_format(settings: Settings) -> ModelOptFormat:
    """Return the format by a checkpoint's settings. Raises UnsupportedFormat."""
    algorithm = str(settings.get("quant_algo")).upper()
    refuse_other({"quant_algo": algorithm}, "quant_algo", ALGORITHMS)
    return ModelOptFormat((BLOCK_SIZE, BLOCK_SIZE) if algorithm == IN_BLOCKS else None)
