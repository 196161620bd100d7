"""The states of recurrent layers by the configuration alone, before any module is built."""

from collections.abc import Callable, Mapping
from functools import partial

from quire.cache.spec import StateSpec
from quire.models.config import RecurrentLayer, UnsupportedModel

STATEFUL_LAYERS = frozenset({"linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding"})
"""The kinds of layers that keep a state; the hybrid ones attend too."""
OTHER_LAYERS = frozenset({"linear_attention", "conv", "mamba", "mlp", "moe"})
"""The kinds of layers without attention."""
KNOWN_LAYERS = STATEFUL_LAYERS | OTHER_LAYERS


def states_from_config(config: object) -> tuple[RecurrentLayer, ...] | None:
    """Return the recurrent layers of a language model; none where it has no such layers, and None
    if they are not known."""
    kinds = list(getattr(config, "layer_types", None) or ())
    indices = [index for index, kind in enumerate(kinds) if kind in STATEFUL_LAYERS]
    if not indices:
        return ()
    if not has_known_states(config):
        return None
    state = STATES[_model_type(config)](config)
    return tuple(RecurrentLayer(index, state) for index in indices)


def has_known_states(config: object) -> bool:
    """Return whether the layers of a model are those of a recurrent family that is served."""
    return _model_type(config) in STATES


def _model_type(config: object) -> str:
    return str(getattr(config, "model_type", "unnamed"))


def _size(config: object, name: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int) or value < 1:
        why = f"{name} of their configuration is {value!r}, must be an integer of at least 1"
        raise UnsupportedModel(_model_type(config), why)
    return value


def _delta_net(config: object) -> StateSpec:
    key_heads, value_heads = (_size(config, f"linear_num_{of}_heads") for of in ("key", "value"))
    key_size, value_size = (_size(config, f"linear_{of}_head_dim") for of in ("key", "value"))
    channels = 2 * key_heads * key_size + value_heads * value_size
    tail = (channels, _size(config, "linear_conv_kernel_dim") - 1)
    return StateSpec((tail, (value_heads, key_size, value_size)))


def _short_conv(config: object) -> StateSpec:
    return StateSpec(((_size(config, "hidden_size"), _size(config, "conv_L_cache") - 1),))


def _mamba(config: object, names: tuple[str, ...]) -> StateSpec:
    """`names` are the fields of the channels, of the elements of B, and of the kernel."""
    channels, state_size, kernel = (_size(config, name) for name in names)
    return StateSpec(((channels, kernel - 1), (channels, state_size)))


def _jamba(config: object) -> StateSpec:
    channels = _size(config, "mamba_expand") * _size(config, "hidden_size")
    tail = (channels, _size(config, "mamba_d_conv") - 1)
    return StateSpec((tail, (channels, _size(config, "mamba_d_state"))))


def _mamba2(config: object, names: tuple[str, ...]) -> StateSpec:
    """`names` are the fields of the heads, their size, the groups, the elements of B in each, and
    of the kernel."""
    heads, head_size, groups, state_size, kernel = (_size(config, name) for name in names)
    channels = heads * head_size + 2 * groups * state_size
    return StateSpec(((channels, kernel - 1), (heads, head_size, state_size)))


def _kimi(config: object) -> StateSpec:
    heads, head_size = _size(config, "linear_num_heads"), _size(config, "linear_head_dim")
    tail = (3 * heads * head_size, _size(config, "linear_conv_kernel_dim") - 1)
    return StateSpec((tail, (heads, head_size, head_size)))


MAMBA = ("intermediate_size", "state_size", "conv_kernel")
BAMBA = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
MAMBA_2 = ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
NEMOTRON_H = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
ZAMBA_2 = ("n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_d_state", "mamba_d_conv")
STATES: Mapping[str, Callable[[object], StateSpec]] = {
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "olmo_hybrid"), _delta_net),
    **dict.fromkeys(("lfm2", "lfm2_moe"), _short_conv),
    **dict.fromkeys(("falcon_mamba", "mamba"), partial(_mamba, names=MAMBA)),
    **dict.fromkeys(("bamba", "falcon_h1", "granitemoehybrid"), partial(_mamba2, names=BAMBA)),
    "jamba": _jamba,
    "kimi_linear": _kimi,
    "mamba2": partial(_mamba2, names=MAMBA_2),
    "nemotron_h": partial(_mamba2, names=NEMOTRON_H),
    "zamba2": partial(_mamba2, names=ZAMBA_2),
}
"""By the type of the language model, the state that each of its recurrent layers keeps."""
