"""Recognises modules of experts by their parts.

Most of transformers' are made by one decorator (`use_experts_implementation`), which tells how
their weights lie. Others keep gate and up apart, or have experts that hand their input on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from quire.models.experts.activations import recognise
from quire.models.experts.forward import ExpertsForward, ExpertWeights

FLOATS = {torch.float32, torch.float16, torch.bfloat16}
DECORATED = ("has_gate", "has_bias", "is_transposed", "num_experts", "down_proj")
SIZES_APART = ("num_experts", "ffn_hidden_size")
APART = ("w1", "v1", "w2")
WITH_IDENTITY = ("identity_expert", "gate_up_proj", "down_proj", "act_fn")

Activate = Callable[[Tensor], Tensor]
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


def find_forward(module: nn.Module) -> Forward | None:
    """Return what can stand in for the module's forward, or None if it is no module of experts, or
    one whose weights the kernels do not take."""
    if not is_float(module):
        return None
    return _decorated(module) or _apart(module) or _with_identity(module)


def is_float(module: nn.Module) -> bool:
    """Return whether all weights have one dtype, which the kernels take."""
    dtypes = {parameter.dtype for parameter in module.parameters()}
    return len(dtypes) == 1 and dtypes <= FLOATS


def has_attributes(module: object, names: tuple[str, ...]) -> bool:
    return all(hasattr(module, name) for name in names)


def _decorated(module: nn.Module) -> Forward | None:
    if not has_attributes(module, DECORATED):
        return None
    activate = function_of(module, "_apply_gate" if module.has_gate else "act_fn")
    has_norm = getattr(module, "has_post_expert_norm", False)
    norm = function_of(module, "post_expert_norm") if has_norm else None
    return ExpertsForward(module, _read_decorated, activate, recognise(activate), norm)


def _read_decorated(module: nn.Module) -> ExpertWeights:
    names = ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")
    first, down = (module.get_parameter(name).data for name in names)
    if module.is_transposed:
        first, down = first.transpose(1, 2), down.transpose(1, 2)
    if not module.has_bias:
        return ExpertWeights((first,), down)
    first_bias, down_bias = (module.get_parameter(f"{name}_bias") for name in names)
    return ExpertWeights((first,), down, (first_bias,), (down_bias,))


def _apart(module: nn.Module) -> Forward | None:
    if not all(isinstance(getattr(module, name, None), int) for name in SIZES_APART):
        return None
    mlp = getattr(module, "mlp", None)
    if not isinstance(mlp, nn.Module) or not has_attributes(mlp, APART):
        return None
    activate = partial(gate_by, function_of(mlp, "activation_fn"))
    return partial(_in_rows, ExpertsForward(module, _read_apart, activate, recognise(activate)))


def _read_apart(module: nn.Module) -> ExpertWeights:
    num_experts, width = (getattr(module, name) for name in SIZES_APART)
    gate, up, down = (
        module.get_parameter(f"mlp.{name}").view(num_experts, width, -1) for name in APART
    )
    return ExpertWeights((gate, up), down.transpose(1, 2))


def _in_rows(forward: Forward, hidden_states: Tensor, *routing: Tensor) -> Tensor:
    """Call `forward` with the rows of [..., size]."""
    out = forward(hidden_states.reshape(-1, hidden_states.shape[-1]), *routing)
    return out.view(hidden_states.shape)


@dataclass(frozen=True, slots=True)
class IdentityExperts:
    """Replaces experts of which those from `num_routed` on are identities."""

    routed: Forward
    num_routed: int

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        share = (top_k_weights * (top_k_index >= self.num_routed)).sum(dim=1, keepdim=True)
        out = self.routed(hidden_states, top_k_index, top_k_weights) + hidden_states * share
        return out.to(hidden_states.dtype)


def _with_identity(module: nn.Module) -> Forward | None:
    num_routed = getattr(module, "num_routed_experts", None)
    if not isinstance(num_routed, int) or not has_attributes(module, WITH_IDENTITY):
        return None
    activate = partial(gate_by, function_of(module, "act_fn"))
    routed = ExpertsForward(module, _read_routed, activate, recognise(activate))
    return IdentityExperts(routed, num_routed)


def _read_routed(module: nn.Module) -> ExpertWeights:
    first, down = (module.get_parameter(name) for name in ("gate_up_proj", "down_proj"))
    return ExpertWeights((first[: len(down)],), down)


def gate_by(function: Activate, first: Tensor) -> Tensor:
    """Return up [n, size] by the activated gate, of both side by side in `first`."""
    gate, up = first.chunk(2, dim=-1)
    return function(gate) * up


def function_of(module: nn.Module, name: str) -> Callable[..., Tensor]:
    """Return a module's function or submodule of that name."""
    found = getattr(module, name)
    assert callable(found), f"{name} of {type(module).__name__} is no function"
    function: Callable[..., Tensor] = found
    return function
