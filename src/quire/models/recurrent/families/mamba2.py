"""Mamba-2 (arXiv 2405.21060), as transformers' families have it.

rows -> in_proj -> gate, (values, B, C), steps
                         causal convolution, SiLU
                                |
                         state space -> gated norm -> out_proj
"""

import math
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from quire.cache.spec import StateSpec
from quire.models.recurrent.division import Division, GroupNorm, Span, Units
from quire.models.recurrent.families.module_parts import (
    conv_weights,
    count,
    refusal,
    refuse_other_activation,
)
from quire.models.recurrent.family import ModuleCore, RecurrentStep
from quire.models.recurrent.kernels import ScanInputs
from quire.models.recurrent.steady import steady


class Mamba2Shape(NamedTuple):
    """The sizes of a module: heads of `head_size` values, and groups of heads that share B and C of
    `state_size`."""

    num_heads: int
    head_size: int
    num_groups: int
    state_size: int
    kernel_size: int

    @property
    def num_values(self) -> int:
        return self.num_heads * self.head_size

    @property
    def num_shared(self) -> int:
        """The elements of B, and of C."""
        return self.num_groups * self.state_size

    @property
    def num_channels(self) -> int:
        """The channels of the convolution."""
        return self.num_values + 2 * self.num_shared


HEADS_AND_GROUPS = {
    "Mamba2Mixer": ("num_heads", "n_groups"),
    "NemotronHMamba2Mixer": ("mamba_num_heads", "n_groups"),
    "Zamba2MambaMixer": ("n_mamba_heads", "mamba_ngroups"),
}
"""The fields of the configuration that count heads and groups, where they are not the usual."""
USUAL = ("mamba_n_heads", "mamba_n_groups")


class Mamba2Family:
    """Implements `RecurrentFamily` for Bamba, Falcon-H1, Granite 4 H, Mamba-2, Nemotron-H, Zamba 2.

    Steps are limited as the module limits them over whole sequences; transformers forgets the
    limits where it computes a single token.
    """

    class_names = frozenset(
        {"BambaMixer", "FalconH1Mixer", "GraniteMoeHybridMambaLayer", "Mamba2Mixer"}
        | {"NemotronHMamba2Mixer", "Zamba2MambaMixer"}
    )

    def division(self, part: nn.Module) -> Division:
        shape = _shape(part)
        of_heads, of_groups = HEADS_AND_GROUPS.get(type(part).__name__, USUAL)
        heads = Units(shape.num_heads, f"Mamba heads ({of_heads})")
        groups = Units(shape.num_groups, f"groups of Mamba heads ({of_groups})", are_shared=True)
        values, steps, shared = (
            Span(heads, shape.head_size),
            Span(heads),
            Span(groups, shape.state_size),
        )
        mixed = (values, shared, shared)
        rows = {"in_proj": (values, *mixed, steps), "conv1d": mixed}
        rows |= dict.fromkeys(("A_log", "D", "dt_bias"), (steps,))
        counts = {"num_heads": (steps,), "n_groups": (Span(groups),), "conv_dim": mixed}
        counts["intermediate_size"] = (values,)
        if isinstance(getattr(part, "mup_vector", None), Tensor):
            rows["mup_vector"] = rows["in_proj"]
            counts["groups_time_state_size"] = (shared,)
        norm = None
        if list(part.get_submodule("norm").parameters()):
            norm = GroupNorm("norm", groups, shape.num_values // shape.num_groups)
            rows["norm.weight"] = (values,)
        return Division(rows, {"out_proj": values}, counts, norm)

    def state(self, part: nn.Module) -> StateSpec:
        shape = _shape(part)
        refuse_other_activation(part)
        if shape.num_heads % shape.num_groups:
            raise refusal(
                part,
                f"their {shape.num_heads} Mamba heads cannot be split into {shape.num_groups} "
                "groups",
            )
        matrices = (shape.num_heads, shape.head_size, shape.state_size)
        return StateSpec(((shape.num_channels, shape.kernel_size - 1), matrices))

    def projections(self, part: nn.Module) -> tuple[str, ...]:
        return ()  # some scale their input before

    def core(self, part: nn.Module) -> ModuleCore | None:
        return None

    def compute(self, part: nn.Module, rows: Tensor, step: RecurrentStep) -> Tensor:
        shape = _shape(part)
        conv_states, matrices = step.states
        gate, mixed, steps = _projected(part, rows).split_with_sizes(
            [shape.num_values, shape.num_channels, shape.num_heads], dim=-1
        )
        mixed = step.kernels.causal_conv(
            mixed, *conv_weights(part), conv_states, step.pieces, is_activated=True
        )
        values, b, c = mixed.split_with_sizes(
            [shape.num_values, shape.num_shared, shape.num_shared], dim=-1
        )
        inputs = ScanInputs(
            rows=values.view(-1, shape.num_heads, shape.head_size),
            steps=_steps(part, steps),
            rates=-part.get_parameter("A_log").float().exp(),
            b=b.view(-1, shape.num_groups, shape.state_size),
            c=c.view(-1, shape.num_groups, shape.state_size),
            skip=part.get_parameter("D").float(),
        )
        scanned = step.kernels.state_space(inputs, matrices, step.pieces).flatten(-2)
        outputs: Tensor = part.get_submodule("out_proj")(_gated(part, scanned, gate))
        return outputs


def _shape(part: nn.Module) -> Mamba2Shape:
    return Mamba2Shape(
        num_heads=count(part, "num_heads"),
        head_size=count(part, "head_dim"),
        num_groups=count(part, "n_groups"),
        state_size=count(part, "ssm_state_size"),
        kernel_size=count(part, "conv_kernel_size"),
    )


def _projected(part: nn.Module, rows: Tensor) -> Tensor:
    """Return the projections of `rows`, with Falcon-H1's multipliers if the module has them."""
    projection = part.get_submodule("in_proj")
    multipliers: object = getattr(part, "mup_vector", None)
    if not isinstance(multipliers, Tensor):
        projected: Tensor = projection(rows)
        return projected
    scaled: Tensor = projection(rows * getattr(part, "ssm_in_multiplier", 1.0))
    return (scaled * multipliers.flatten()).to(rows.dtype)


def _steps(part: nn.Module, steps: Tensor) -> Tensor:
    """Return the sizes of the steps [T, num_heads] in float32."""
    sizes = steady(softplus, steps.float() + part.get_parameter("dt_bias").float())
    least, most = getattr(part, "time_step_limit", None) or (0.0, math.inf)
    return sizes if least <= 0 and most == math.inf else sizes.clamp(least, most)


def _gated(part: nn.Module, scanned: Tensor, gate: Tensor) -> Tensor:
    """Return the gated outputs of the scan [T, num_values], normed after or, where Falcon-H1 has it
    so, before they are gated; some of Falcon-H1 have no norm."""
    norm, wide, gates = part.get_submodule("norm"), scanned.float(), steady(silu, gate.float())
    is_gated_last = bool(getattr(norm, "norm_before_gate", False))
    normed: Tensor = norm(wide) * gates if is_gated_last else norm(wide * gates)
    return normed.to(scanned.dtype)
