"""The short convolutions of LFM2 (arXiv 2511.23404): a gate before a causal convolution of each
channel, and one behind it."""

from torch import Tensor, nn

from quire.cache.spec import StateSpec
from quire.models.recurrent.division import Division, Span, Units
from quire.models.recurrent.family import ModuleCore, RecurrentStep
from quire.models.recurrent.kernels import ShortConvWeights

PROJECTIONS = ("in_proj",)
OUTPUT = "out_proj"


class ShortConv:
    """Implements `RecurrentFamily`."""

    class_names = frozenset({"Lfm2ShortConv", "Lfm2MoeShortConv"})

    def division(self, part: nn.Module) -> Division:
        channels = Span(Units(len(part.get_parameter("conv.weight")), "channels (hidden_size)"))
        return Division(
            rows={"in_proj": (channels,) * 3, "conv": (channels,)}, inputs={"out_proj": channels}
        )

    def state(self, part: nn.Module) -> StateSpec:
        channels, _, width = part.get_parameter("conv.weight").shape
        return StateSpec(((channels, width - 1),))

    def projections(self, part: nn.Module) -> tuple[str, ...]:
        return PROJECTIONS

    def core(self, part: nn.Module) -> ModuleCore | None:
        return ModuleCore(_weights(part), OUTPUT)

    def compute(self, part: nn.Module, rows: Tensor, step: RecurrentStep) -> Tensor:
        (projected,) = step.project(part, PROJECTIONS, rows)
        before, behind, inner = projected.chunk(3, dim=-1)
        mixed = step.kernels.causal_conv(
            before * inner, *_weights(part), step.states[0], step.pieces, is_activated=False
        )
        out: Tensor = part.get_submodule(OUTPUT)(behind * mixed)
        return out


def _weights(part: nn.Module) -> ShortConvWeights:
    conv = part.get_submodule("conv")
    bias = conv.bias
    return ShortConvWeights(
        conv.get_parameter("weight").squeeze(1), bias if isinstance(bias, Tensor) else None
    )
