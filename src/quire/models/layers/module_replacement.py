"""Replaces modules of a loaded model, whose linear weights are packed, by fused ones.

A module is recognised by its parts, and replaced only if the fused one computes what it does
(`equivalence.py`): no model family is known by name here. Gate and up, query, key and value, and
the projections of a recurrent module's input then share one packed weight, of which their own
weights are views.
"""

import copy
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from quire.models.attention.hook import AttentionContext
from quire.models.config import FORWARD_ERRORS
from quire.models.hf import HOOK, PagedAttentionHook
from quire.models.layers.decoder import DecoderForward
from quire.models.layers.decoder_parts import (
    ATTENTION,
    decoder_base,
    decoder_rotary,
    layer_names,
    layer_norms,
    layer_parts,
    logit_cap,
)
from quire.models.layers.equivalence import (
    AttentionCheck,
    EquivalenceCheck,
    LayerCheck,
    ModelCheck,
    is_same,
    root_mean_square,
)
from quire.models.layers.fused_layers import (
    AttentionForward,
    GatedForward,
    LayerForward,
    NormForward,
    RecurrentMixer,
)
from quire.models.layers.joined_linears import JoinedForward, join_dense, join_linears
from quire.models.layers.layer_kernels import LayerKernels
from quire.models.layers.linears import PackedForward, PackedLookup
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.native_decoder import NativeDecoder
from quire.models.layers.native_mixers import NativeRecurrent, native_recurrent
from quire.models.native.decoder.fused import (
    ACTIVATIONS,
    MAX_HEAD_SIZE,
    NORM_KINDS,
    HeadLayout,
    NormParams,
)
from quire.models.recurrent.hook import RecurrentForward
from quire.models.rounding import part_tolerance

logger = logging.getLogger(__name__)

Forward = Callable[..., object]

ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
}
ACTIVATION_ERROR = 1e-6
BIG = 3.0
"""The root mean square of the gates in a check: near zero all activations look alike."""
CHECK_SIZES = (1.0, 2.0**-10)
"""Root mean squares of the inputs that norms are checked with: the smaller one shows epsilon."""
NUM_CHECK_ROWS = 3


@dataclass(frozen=True, slots=True)
class ModuleReplacements:
    """The modules whose forward is replaced now, and the recurrent ones whose projections are
    joined."""

    modules: list[nn.Module] = field(default_factory=list)
    recurrent: list[RecurrentForward] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A sentence for each kind of candidates that were not equivalent in some modules."""

    def replace(self, module: nn.Module, forward: Forward) -> None:
        setattr(module, "forward", forward)  # noqa: B010
        self.modules.append(module)

    def keep_equivalent(
        self, checks: Sequence[EquivalenceCheck], run_steps: Callable[[], object]
    ) -> None:
        """Keep the candidates that were equivalent in every call that `run_steps` makes.

        A candidate that is never called is not kept.
        """
        for check in checks:
            self.replace(check.module, check)
        run_steps()
        unlike = Counter[str]()
        for check in checks:
            if check.is_equivalent:
                setattr(check.module, "forward", check.candidate)  # noqa: B010
            else:
                delattr(check.module, "forward")
                self.modules.remove(check.module)
                unlike[type(check.candidate).__name__] += 1
        self.left_out.extend(
            f"{count} of {len(checks)} {name}: the module computes something else, or is not "
            "called. It runs part by part, which takes longer"
            for name, count in unlike.items()
        )

    def undo(self) -> None:
        """Restore every forward. Weights that were joined stay joined."""
        for module in self.modules:
            delattr(module, "forward")
        self.modules.clear()
        for forward in self.recurrent:
            forward.joined = None
        self.recurrent.clear()


def replace_modules(
    module: nn.Module,
    given: ModelKernels,
    context: AttentionContext,
    run_steps: Callable[[], object],
) -> ModuleReplacements:
    """Replace what can be replaced in `module`, and return what was.

    `run_steps` runs the module through steps of several tokens, with `context` set: in these the
    candidates are compared with the modules that they stand for. Nothing is replaced if `given` has
    no fused kernels for the model's dtype.
    """
    replacements, kernels = ModuleReplacements(), given.fused
    dtype = next((parameter.dtype for parameter in module.parameters()), None)
    if kernels is None or dtype not in kernels.dtypes:
        return replacements
    tolerance = part_tolerance(dtype, is_exact=given.are_exact)
    parts = [part for part in module.modules() if "forward" not in vars(part)]
    for recurrent in map(_forward_of, module.modules()):
        if isinstance(recurrent, RecurrentForward):
            _join_projections(recurrent, dtype, tolerance)
            replacements.recurrent.append(recurrent)
    for part in parts:
        forward = _norm(part, kernels, dtype) or _gated(part, kernels, dtype, tolerance)
        if forward is not None:
            replacements.replace(part, forward)
    replacements.keep_equivalent(
        [
            AttentionCheck(part, attention, context, tolerance)
            for part in parts
            if (attention := _attention(part, kernels, dtype))
        ],
        run_steps,
    )
    replacements.keep_equivalent(
        [
            LayerCheck(part, layer, context, tolerance)
            for part in parts
            if (layer := _layer(part, kernels))
        ],
        run_steps,
    )
    decoder = _decoder(module, given, kernels, context)
    if decoder is not None:
        replacements.keep_equivalent([ModelCheck(module, decoder, context, tolerance)], run_steps)
    kinds = Counter(type(part.forward).__name__ for part in replacements.modules)
    logger.info("fused: %s", ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
    return replacements


def packed_tensors(module: nn.Module) -> list[Tensor]:
    """Return all packed weights, in about the order in which a step reads them."""
    found: dict[int, Tensor] = {}
    for part in module.modules():
        forward = _forward_of(part)
        whole: tuple[object, ...] = (forward,)
        if isinstance(forward, AttentionForward):
            whole = (forward.qkv, forward.out)
        elif isinstance(forward, GatedForward):
            whole = (forward.gate_up, forward.down)
        elif isinstance(forward, RecurrentForward) and isinstance(forward.joined, JoinedForward):
            whole = (forward.joined.whole,)
        for each in whole:
            if isinstance(each, PackedForward | PackedLookup):
                found[id(each.weight.packed)] = each.weight.packed
    return list(found.values())


def _norm(module: nn.Module, kernels: LayerKernels, dtype: torch.dtype) -> NormForward | None:
    """Return the norm for a module with one weight and an epsilon that is an RMSNorm, otherwise
    None.

    A copy of the module with weights around one shows the kind: with large trained weights, w and 1
    + w differ by rounding only.
    """
    parameters = dict(module.named_parameters())
    weight = parameters.get("weight")
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if len(parameters) != 1 or weight is None or weight.dim() != 1:
        return None
    if "gate" in signature(module.forward).parameters:
        return None
    if weight.dtype != dtype or not isinstance(epsilon, float):
        return None
    twin, tolerance = copy.deepcopy(module), part_tolerance(dtype, is_exact=True)
    x = _numbers(len(weight), weight)
    twin.get_parameter("weight").data = x[0].clone()
    for kind in range(len(NORM_KINDS)):
        known = NormForward(kernels, NormParams(x[0].clone(), epsilon, kind))
        forward = NormForward(kernels, NormParams(weight.data.contiguous(), epsilon, kind))
        if all(
            _agree(one, other, x * scale, tolerance)
            for one, other in ((twin, known), (module, forward))
            for scale in CHECK_SIZES
        ):
            return forward
    return None


def _gated(
    module: nn.Module, kernels: LayerKernels, dtype: torch.dtype, tolerance: float
) -> GatedForward | None:
    is_numbered = isinstance(getattr(module, "w1", None), nn.Linear)
    named = getattr(module, "act_fn", getattr(module, "activation_fn", None))
    act = _act(silu if named is None and is_numbered else named)
    down = _packed(module, dtype, ("w2" if is_numbered else "down_proj",))
    gate_up = _packed(module, dtype, ("gate_up_proj",)) or _packed(
        module, dtype, ("w1", "w3") if is_numbered else ("gate_proj", "up_proj")
    )
    if act is None or down is None or gate_up is None:
        return None
    forward = GatedForward(kernels, gate_up, down, act)
    x = _numbers(gate_up.weight.num_columns, gate_up.weight.packed)
    x *= BIG / max(root_mean_square(gate_up(x)), 1e-6)
    return forward if _agree(module, forward, x, tolerance) else None


def _act(function: object) -> int | None:
    """Return the index in ACTIVATIONS of a function that computes the same, or None."""
    if not callable(function):
        return None
    x = torch.linspace(-8, 8, 999)
    for index, name in enumerate(ACTIVATIONS):
        try:
            found = function(x)
        except FORWARD_ERRORS:
            return None
        if (
            isinstance(found, Tensor)
            and (found - ACTIVATION_FUNCTIONS[name](x)).abs().max() <= ACTIVATION_ERROR
        ):
            return index
    return None


def _attention(
    module: nn.Module, kernels: LayerKernels, dtype: torch.dtype
) -> AttentionForward | None:
    hook = getattr(module, HOOK, None)
    out = _packed(module, dtype, ("o_proj",)) or _packed(module, dtype, ("out_proj",))
    qkv = _packed(module, dtype, ("qkv_proj",)) or _packed(
        module, dtype, ("q_proj", "k_proj", "v_proj")
    )
    if not isinstance(hook, PagedAttentionHook) or out is None or qkv is None:
        return None
    layer = hook.layer
    head_size, num_values = layer.head_size, layer.num_kv_heads * layer.v_head_size
    num_query = (qkv.weight.num_rows - num_values) // head_size - layer.num_kv_heads
    is_gated = num_query * head_size == 2 * out.weight.num_columns
    num_query //= 1 + is_gated
    if head_size != layer.v_head_size or head_size > MAX_HEAD_SIZE or num_query <= 0:
        return None
    norms = [
        getattr(module, f"{of}_norm", getattr(module, f"{of}_layernorm", None)) for of in ("q", "k")
    ]
    params = [_norm_params(norm, head_size) for norm in norms]
    if any((norm is None) != (each is None) for norm, each in zip(norms, params, strict=True)):
        return None
    if len({None if each is None else each.kind for each in params}) > 1:
        return None
    heads = HeadLayout(num_query, layer.num_kv_heads, head_size, *params)
    return AttentionForward(kernels, qkv, out, heads, hook, is_gated)


def _norm_params(norm: object, size: int) -> NormParams | None:
    """Return the parameters of a module that is a fused norm of that size, else None."""
    forward = _forward_of(norm)
    if not isinstance(forward, NormForward) or len(forward.scale.weight) != size:
        return None
    return forward.scale


def _layer(module: nn.Module, kernels: LayerKernels) -> LayerForward | None:
    parts = layer_parts(module)
    forwards = {part: _forward_of(part) for part in parts.values()}
    known = {part: each.scale for part, each in forwards.items() if isinstance(each, NormForward)}
    names, norms = layer_names(module), layer_norms(module, known)
    if names is None or norms is None:
        return None
    if next(module.parameters(recurse=False), None) is not None:
        return None
    mixer, mlp = forwards[parts[names.mixer]], forwards[parts[names.mlp]]
    if isinstance(mixer, RecurrentForward) and names.mixer != ATTENTION:
        mixer = RecurrentMixer(mixer)
    if not isinstance(mixer, AttentionForward | RecurrentMixer):
        return None
    return LayerForward(kernels, norms, mixer, mlp) if isinstance(mlp, GatedForward) else None


def _forward_of(part: object) -> object:
    """Return the replacement of the part's forward, or None."""
    return vars(part).get("forward") if isinstance(part, nn.Module) else None


def _decoder(
    module: nn.Module, given: ModelKernels, kernels: LayerKernels, context: AttentionContext
) -> DecoderForward | None:
    base = decoder_base(module)
    if base is None:
        return None
    forwards = [_forward_of(layer) for layer in base["layers"].children()]
    layers = tuple(forward for forward in forwards if isinstance(forward, LayerForward))
    norm, rotary = _forward_of(base["norm"]), decoder_rotary(base["rotary_emb"], len(forwards))
    if len(layers) < len(forwards) or not isinstance(norm, NormForward) or rotary is None:
        return None
    native = None
    mixers = [_native_mixer(layer) for layer in layers]
    known = tuple(mixer for mixer in mixers if mixer is not None)
    if given.decoder is not None and len(known) == len(layers):
        native = NativeDecoder(given.decoder, layers, known, rotary.of_layers, norm.scale)
    return DecoderForward(
        embedding=base["embed_tokens"],
        rotary=rotary,
        layers=layers,
        kernels=kernels,
        scale=norm.scale,
        head=module.get_submodule("lm_head"),
        cap=logit_cap(module),
        native=native,
        context=context,
    )


def _native_mixer(layer: LayerForward) -> AttentionForward | NativeRecurrent | None:
    """Return attention, or a recurrent module, as the kernel of a decoder runs it; None if it does
    not."""
    mixer = layer.attention
    return native_recurrent(mixer.forward) if isinstance(mixer, RecurrentMixer) else mixer


def _packed(module: nn.Module, dtype: torch.dtype, names: Sequence[str]) -> PackedForward | None:
    """Return the linear layers of these names as one, or None if one is missing or not packed."""
    forwards = []
    for name in names:
        forward = _forward_of(getattr(module, name, None))
        if not isinstance(forward, PackedForward) or forward.weight.packed.dtype != dtype:
            return None
        forwards.append(forward)
    return forwards[0] if len(forwards) == 1 else join_dense(forwards)


def _join_projections(forward: RecurrentForward, dtype: torch.dtype, tolerance: float) -> None:
    """Let a recurrent module multiply its input once, where all of its projections are packed and
    can be joined, and their outputs stay what they are."""
    parts = [forward.part.get_submodule(name) for name in forward.family.projections(forward.part)]
    packed = [_forward_of(part) for part in parts]
    given = [each for each in packed if isinstance(each, PackedForward)]
    if not given or len(given) < len(parts) or any(f.weight.packed.dtype != dtype for f in given):
        return
    x = _numbers(given[0].weight.num_columns, given[0].weight.packed)
    expected = [part(x) for part in parts]
    joined = join_linears(given)
    if joined is None:
        return
    if all(is_same(*pair, tolerance) for pair in zip(joined(x), expected, strict=True)):
        forward.joined = joined


def _numbers(size: int, like: Tensor) -> Tensor:
    """Return [NUM_CHECK_ROWS, size] of numbers, always the same, with a mean that is not zero, of
    the dtype and on the device of `like`."""
    generator = torch.Generator().manual_seed(size)
    return (torch.randn(NUM_CHECK_ROWS, size, generator=generator) + 0.5).to(like)


def _agree(
    module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, tolerance: float
) -> bool:
    try:
        expected = module(x.clone())
        return isinstance(expected, Tensor) and is_same(forward(x.clone()), expected, tolerance)
    except FORWARD_ERRORS:
        return False
