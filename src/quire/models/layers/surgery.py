"""Puts fused parts under a loaded model whose linear weights are packed.

A part is looked for by what it is made of, and kept only if it says what the module says that it
stands for: no family is known by name here. Gate and up, and query, key and value, then share one
packed weight, of which their own are views.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from quire.models.attention.port import CurrentStep
from quire.models.hf import PORT, PagedPort
from quire.models.layers.decoder import DecoderForward
from quire.models.layers.layers import (
    AttentionForward,
    GatedForward,
    LayerForward,
    NormForward,
)
from quire.models.layers.linears import PackedForward, PackedLookup
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.program import Program
from quire.models.layers.screened import screen_tensors
from quire.models.layers.trials import (
    AttentionTrial,
    LayerTrial,
    ModelTrial,
    Trial,
    is_same,
    root_mean_square,
)
from quire.models.loading.probe import FORWARD_ERRORS
from quire.models.native.decoder.fused import (
    ACTS,
    KINDS,
    MAX_HEAD_WIDTH,
    FusedKernels,
    Heads,
    Scale,
)

logger = logging.getLogger(__name__)

Forward = Callable[..., object]

ACT_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
}
ACT_ERROR = 1e-6
BIG = 3.0
"""The root mean square of gates on trial: near zero all activations look alike."""
TRIAL_SIZES = (1.0, 2.0**-10)
"""Root mean squares of what norms are tried on: beside the smaller one their epsilon shows."""
NUM_TRIAL_ROWS = 3
MODEL_PARTS = {"model", "lm_head"}
BASE_PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


@dataclass(frozen=True, slots=True)
class Surgery:
    """The modules that have another forward now."""

    modules: list[nn.Module] = field(default_factory=list)

    def put(self, module: nn.Module, forward: Forward) -> None:
        setattr(module, "forward", forward)  # noqa: B010
        self.modules.append(module)

    def try_out(self, trials: Sequence[Trial], rehearse: Callable[[], object]) -> None:
        """Keep the candidates that are good wherever the rehearsal comes by."""
        for trial in trials:
            self.put(trial.module, trial)
        rehearse()
        for trial in trials:
            if trial.is_good:
                setattr(trial.module, "forward", trial.candidate)  # noqa: B010
            else:
                delattr(trial.module, "forward")
                self.modules.remove(trial.module)

    def undo(self) -> None:
        """Every forward as it was. Weights that were joined stay so."""
        for module in self.modules:
            delattr(module, "forward")
        self.modules.clear()


def operate(
    module: nn.Module, given: ModelKernels, current: CurrentStep, rehearse: Callable[[], object]
) -> Surgery:
    """`rehearse` runs the module through steps of several tokens, with `current` set."""
    surgery, kernels = Surgery(), given.fused
    dtype = next((parameter.dtype for parameter in module.parameters()), None)
    if kernels is None or dtype not in kernels.dtypes:
        return surgery
    parts = [part for part in module.modules() if "forward" not in vars(part)]
    for part in parts:
        forward = _norm(part, kernels, dtype) or _gated(part, kernels, dtype)
        if forward is not None:
            surgery.put(part, forward)
    surgery.try_out(
        [
            AttentionTrial(part, attention, current)
            for part in parts
            if (attention := _attention(part, kernels, dtype))
        ],
        rehearse,
    )
    surgery.try_out(
        [LayerTrial(part, layer) for part in parts if (layer := _layer(part, kernels))], rehearse
    )
    decoder = _decoder(module, given, kernels)
    if decoder is not None:
        surgery.try_out([ModelTrial(module, decoder)], rehearse)
    kinds = Counter(type(part.forward).__name__ for part in surgery.modules)
    logger.info("fused: %s", ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
    return surgery


def packed_tensors(module: nn.Module) -> list[Tensor]:
    """Of all packed weights, in about the order in which a step reads them, then of the head's
    screen."""
    found: dict[int, Tensor] = {}
    for part in module.modules():
        forward = _forward_of(part)
        whole: tuple[object, ...] = (forward,)
        if isinstance(forward, AttentionForward):
            whole = (forward.qkv, forward.out)
        elif isinstance(forward, GatedForward):
            whole = (forward.gate_up, forward.down)
        for each in whole:
            if isinstance(each, PackedForward | PackedLookup):
                found[id(each.weight.packed)] = each.weight.packed
    return [*found.values(), *screen_tensors(module)]


def _norm(module: nn.Module, kernels: FusedKernels, dtype: torch.dtype) -> NormForward | None:
    """Of a module that has but a weight and an epsilon, if it is an RMSNorm of some kind."""
    parameters = dict(module.named_parameters())
    weight = parameters.get("weight")
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if len(parameters) != 1 or weight is None or weight.dim() != 1:
        return None
    if weight.dtype != dtype or not isinstance(epsilon, float):
        return None
    for kind in range(len(KINDS)):
        forward = NormForward(kernels, Scale(weight.data.contiguous(), epsilon, kind))
        x = _numbers(len(weight), dtype)
        if all(_agree(module, forward, x * size) for size in TRIAL_SIZES):
            return forward
    return None


def _gated(module: nn.Module, kernels: FusedKernels, dtype: torch.dtype) -> GatedForward | None:
    act = _act(getattr(module, "act_fn", getattr(module, "activation_fn", None)))
    down = _packed(module, dtype, ("down_proj",))
    gate_up = _packed(module, dtype, ("gate_up_proj",)) or _packed(
        module, dtype, ("gate_proj", "up_proj")
    )
    if act is None or down is None or gate_up is None:
        return None
    forward = GatedForward(kernels, gate_up, down, act)
    x = _numbers(gate_up.weight.num_columns, dtype)
    x *= BIG / max(root_mean_square(gate_up(x)), 1e-6)
    return forward if _agree(module, forward, x) else None


def _act(function: object) -> int | None:
    """Its place among ACTS."""
    if not callable(function):
        return None
    x = torch.linspace(-8, 8, 999)
    for index, name in enumerate(ACTS):
        try:
            found = function(x)
        except FORWARD_ERRORS:
            return None
        if isinstance(found, Tensor) and (found - ACT_FUNCTIONS[name](x)).abs().max() <= ACT_ERROR:
            return index
    return None


def _attention(
    module: nn.Module, kernels: FusedKernels, dtype: torch.dtype
) -> AttentionForward | None:
    port = getattr(module, PORT, None)
    out = _packed(module, dtype, ("o_proj",))
    qkv = _packed(module, dtype, ("qkv_proj",)) or _packed(
        module, dtype, ("q_proj", "k_proj", "v_proj")
    )
    if not isinstance(port, PagedPort) or out is None or qkv is None:
        return None
    layer = port.layer
    width, num_values = layer.k_width, layer.num_kv_heads * layer.v_width
    num_query = (qkv.weight.num_rows - num_values) // width - layer.num_kv_heads
    if width != layer.v_width or width > MAX_HEAD_WIDTH or num_query <= 0:
        return None
    norms = [getattr(module, name, None) for name in ("q_norm", "k_norm")]
    scales = [_scale(norm, width) for norm in norms]
    if any((norm is None) != (scale is None) for norm, scale in zip(norms, scales, strict=True)):
        return None
    if len({None if scale is None else scale.kind for scale in scales}) > 1:
        return None
    heads = Heads(num_query, layer.num_kv_heads, width, *scales)
    return AttentionForward(kernels, qkv, out, heads, port)


def _scale(norm: object, width: int) -> Scale | None:
    """Of a fused norm of that width."""
    forward = _forward_of(norm)
    if not isinstance(forward, NormForward) or len(forward.scale.weight) != width:
        return None
    return forward.scale


def _layer(module: nn.Module, kernels: FusedKernels) -> LayerForward | None:
    children = module.named_children()
    parts = {name: part for name, part in children if not isinstance(part, nn.Dropout)}
    if parts.keys() != LAYER_PARTS or any(module.parameters(recurse=False)):
        return None
    before, attention, between, mlp = (
        _forward_of(parts[name])
        for name in ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    )
    if not isinstance(before, NormForward) or not isinstance(between, NormForward):
        return None
    if not isinstance(attention, AttentionForward) or not isinstance(mlp, GatedForward):
        return None
    return LayerForward(kernels, before.scale, attention, between.scale, mlp)


def _forward_of(part: object) -> object:
    """What stands in for its own, if anything."""
    return vars(part).get("forward") if isinstance(part, nn.Module) else None


def _decoder(
    module: nn.Module, given: ModelKernels, kernels: FusedKernels
) -> DecoderForward | None:
    parts = dict(module.named_children())
    if parts.keys() != MODEL_PARTS:
        return None
    base = dict(parts["model"].named_children())
    if base.keys() != BASE_PARTS or not isinstance(base["layers"], nn.ModuleList):
        return None
    forwards = [_forward_of(layer) for layer in base["layers"]]
    layers = tuple(forward for forward in forwards if isinstance(forward, LayerForward))
    norm = _forward_of(base["norm"])
    if len(layers) < len(forwards) or not isinstance(norm, NormForward):
        return None
    program = None
    if given.decoder is not None:
        program = Program(given.decoder, layers, norm.scale, given.are_exact)
    return DecoderForward(
        embedding=base["embed_tokens"],
        rotary=base["rotary_emb"],
        layers=layers,
        kernels=kernels,
        scale=norm.scale,
        head=parts["lm_head"],
        program=program,
    )


def _packed(module: nn.Module, dtype: torch.dtype, names: Sequence[str]) -> PackedForward | None:
    """The linear layers of these names as one. None: one of them is not there, or not packed."""
    forwards = []
    for name in names:
        forward = _forward_of(getattr(module, name, None))
        if not isinstance(forward, PackedForward) or forward.weight.packed.dtype != dtype:
            return None
        forwards.append(forward)
    if len(forwards) == 1:
        return forwards[0]
    kernel = forwards[0].kernel
    if any(forward.kernel is not kernel for forward in forwards):
        return None
    if len({forward.weight.num_columns for forward in forwards}) > 1:
        return None
    joined = kernel.join([forward.weight for forward in forwards])
    return None if joined is None else PackedForward(kernel, joined, _joined_bias(forwards))


def _joined_bias(forwards: Sequence[PackedForward]) -> Tensor | None:
    if all(forward.bias is None for forward in forwards):
        return None
    zeros = [f.weight.packed.new_zeros(f.weight.num_rows) for f in forwards]
    return torch.cat(
        [f.bias if f.bias is not None else z for f, z in zip(forwards, zeros, strict=True)]
    )


def _numbers(width: int, dtype: torch.dtype) -> Tensor:
    """[NUM_TRIAL_ROWS, width], the same each time, their mean not zero."""
    generator = torch.Generator().manual_seed(width)
    return (torch.randn(NUM_TRIAL_ROWS, width, generator=generator) + 0.5).to(dtype)


def _agree(module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    try:
        expected = module(x.clone())
        return isinstance(expected, Tensor) and is_same(forward(x.clone()), expected)
    except FORWARD_ERRORS:
        return False
