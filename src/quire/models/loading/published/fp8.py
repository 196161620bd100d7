"""FP8: floats of 8 bits with a scale for the whole weight, each row, or each block of rows and
columns, as DeepSeek V3 (arXiv 2412.19437), fbgemm and Mistral store them.

    weight              [N, K] float8
    weight_scale_inv    [ceil(N / block), ceil(K / block)], or one number
    weight_scale        [N, 1] float32, as fbgemm names it

W = weight x scale. Experts in one tensor have a scale after their name, as gate_up_proj_scale_inv.
Activations are not quantised.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from quire.models.loading.published.module_parts import module_place
from quire.models.loading.published.published_format import PartOutline, Parts, WeightPart
from quire.models.loading.published.scaled_floats import Block, scaled_shape, scaled_values
from quire.models.loading.published.settings import Settings, refuse_other, sizes_of_block

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "weight": "weight",
        **dict.fromkeys(("weight_scale_inv", "weight_scale", "qscale_weight"), "weight_scale"),
    }
)


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """`block`: the rows and columns of a scale, None where scales are of rows or whole weights."""

    block: Block | None

    def place(self, name: str) -> WeightPart | None:
        return module_place(name, PARTS)

    def shape(self, weight: str, parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
        return scaled_shape(parts, self.block)

    def unpacked(self, weight: str, parts: Parts) -> Tensor:
        return scaled_values(parts, self.block)


def fp8_format(settings: Settings) -> Fp8Format:
    """Return the format by a checkpoint's settings. Raises UnsupportedFormat."""
    refuse_other(settings, "expert_dtype", ("fp8",))
    refuse_other(settings, "fmt", ("e4m3", "e5m2", "float8_e4m3fn"))
    block = settings.get("weight_block_size")
    return Fp8Format(None if block is None else sizes_of_block("weight_block_size", block))
