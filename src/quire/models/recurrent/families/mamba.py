"""Mamba (arXiv 2312.00752), as transformers' families have it.

rows -> in_proj -> values, gate
                   causal convolution, SiLU -> x_proj -> steps, B, C
                          |                              (each normed in Falcon Mamba and Jamba)
                   selective scan, gated by SiLU -> out_proj
"""

from torch import Tensor, nn
from torch.nn.functional import linear, pad, silu, softplus

from quire.cache.spec import StateSpec
from quire.models.recurrent.division import Division, Span, Units
from quire.models.recurrent.families.module_parts import (
    conv_weights,
    count,
    refuse_other_activation,
)
from quire.models.recurrent.family import ModuleCore, RecurrentStep
from quire.models.recurrent.kernels import ScanInputs
from quire.models.recurrent.steady import steady

MANY = 16
"""The number of rows from which on torch sums the products of each in the same order."""
PROJECTIONS = ("in_proj",)
NORMS = ("dt_layernorm", "b_layernorm", "c_layernorm")


FIELDS = {"JambaMambaMixer": "mamba_expand * hidden_size"}
"""The field of the number of channels, where it is not `intermediate_size`."""


class MambaFamily:
    """Implements `RecurrentFamily` for Falcon Mamba, Jamba and Mamba."""

    class_names = frozenset({"FalconMambaMixer", "JambaMambaMixer", "MambaMixer"})

    def division(self, part: nn.Module) -> Division:
        name = FIELDS.get(type(part).__name__, "intermediate_size")
        channels = Span(Units(count(part, "intermediate_size"), f"channels ({name})"))
        once = ("conv1d", "dt_proj", "A_log", "D")
        return Division(
            rows={"in_proj": (channels,) * 2, **dict.fromkeys(once, (channels,))},
            inputs={"x_proj": channels, "out_proj": channels},
            counts={"intermediate_size": (channels,)},
        )

    def state(self, part: nn.Module) -> StateSpec:
        refuse_other_activation(part)
        num_channels = count(part, "intermediate_size")
        tail = count(part, "conv_kernel_size") - 1
        return StateSpec(((num_channels, tail), (num_channels, count(part, "ssm_state_size"))))

    def projections(self, part: nn.Module) -> tuple[str, ...]:
        return PROJECTIONS

    def core(self, part: nn.Module) -> ModuleCore | None:
        return None

    def compute(self, part: nn.Module, rows: Tensor, step: RecurrentStep) -> Tensor:
        conv_states, matrices = step.states
        (projected,) = step.project(part, PROJECTIONS, rows)
        values, gate = projected.chunk(2, dim=-1)
        values = step.kernels.causal_conv(
            values, *conv_weights(part), conv_states, step.pieces, is_activated=True
        )
        state_size = count(part, "ssm_state_size")
        sizes = [count(part, "time_step_rank"), state_size, state_size]
        steps, b, c = part.get_submodule("x_proj")(values).split(sizes, dim=-1)
        if hasattr(part, NORMS[0]):
            steps, b, c = (
                part.get_submodule(name)(each)
                for name, each in zip(NORMS, (steps, b, c), strict=True)
            )
        inputs = ScanInputs(
            rows=values,
            steps=_steps(part.get_submodule("dt_proj"), steps),
            rates=-part.get_parameter("A_log").float().exp(),
            b=b,
            c=c,
            skip=part.get_parameter("D").float(),
        )
        scanned = step.kernels.selective_scan(inputs, matrices, step.pieces)
        gated = (scanned.float() * steady(silu, gate.float())).to(scanned.dtype)
        outputs: Tensor = part.get_submodule("out_proj")(gated)
        return outputs


def _steps(projection: nn.Module, steps: Tensor) -> Tensor:
    """Return the sizes of the steps [T, num_channels] in float32. The bias, which is the larger
    part, is added in float32; so the projection is never packed, nor by its own module."""
    projected = _multiplied(steps, projection.get_parameter("weight")).float()
    return steady(softplus, projected + projection.get_parameter("bias").float())


def _multiplied(rows: Tensor, weight: Tensor) -> Tensor:
    """Return `rows` times `weight`, by no fewer than MANY rows: of fewer, torch may sum the
    products in another order, and a state would depend on what else is in the step."""
    return linear(pad(rows, (0, 0, 0, max(MANY - len(rows), 0))), weight)[: len(rows)]
