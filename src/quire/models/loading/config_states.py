"""The states of recurrent layers by the configuration alone, before any module is built."""

from collections.abc import Callable, Mapping

from quire.cache.spec import StateSpec
from quire.models.config import RecurrentLayer

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
    if not has_known_states(config):
        return None if indices else ()
    state = STATES[_model_type(config)](config)
    return tuple(RecurrentLayer(index, state) for index in indices)


def has_known_states(config: object) -> bool:
    """Return whether the layers of a model are those of a recurrent family that is served."""
    return _model_type(config) in STATES


def _model_type(config: object) -> str:
    return str(getattr(config, "model_type", "unnamed"))


def _size(config: object, name: str) -> int:
    value = getattr(config, name)
    assert isinstance(value, int), f"{name} was checked when the configuration was read"
    return value


def _delta_net(config: object) -> StateSpec:
    key_heads, value_heads = (_size(config, f"linear_num_{of}_heads") for of in ("key", "value"))
    key_size, value_size = (_size(config, f"linear_{of}_head_dim") for of in ("key", "value"))
    channels = 2 * key_heads * key_size + value_heads * value_size
    tail = (channels, _size(config, "linear_conv_kernel_dim") - 1)
    return StateSpec((tail, (value_heads, key_size, value_size)))


def _short_conv(config: object) -> StateSpec:
    return StateSpec(((_size(config, "hidden_size"), _size(config, "conv_L_cache") - 1),))


STATES: Mapping[str, Callable[[object], StateSpec]] = {
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "olmo_hybrid"), _delta_net),
    **dict.fromkeys(("lfm2", "lfm2_moe"), _short_conv),
}
"""By the type of the language model, the state that each of its recurrent layers keeps."""
