"""Reads from a configuration, before the weights, the context length and reasons to refuse.

A feature that the attention backends lack would not fail but give wrong text: so it is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from quire.models.config import UnsupportedModel
from quire.models.recurrent.config_states import KNOWN_LAYERS, OTHER_LAYERS, has_known_states

LENGTH_NAMES = ("max_position_embeddings", "max_sequence_length", "seq_length", "max_seq_len")
UNLIMITED_LEN = 1 << 20
"""The context length, in tokens, of models without attention, which state none: the memory of a
request does not grow with its length."""
PAGED_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
UNTOLD_WINDOWS = frozenset({"phimoe"})
"""A window in their configuration holds for every layer, and their attention is told of none."""
DOUBTFUL_WINDOWS = frozenset({"moshi", "olmoe"})
"""A window in their configuration is one of the cache or of the kernel, but not of the mask."""
OFFSET_POSITIONS = frozenset(
    {"camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta"}
    | {"xlm-roberta-xl", "xmod"}
)
"""The first position is that of the padding token, plus one."""


@dataclass(frozen=True, slots=True)
class Layering:
    """The attention of the layers by the configuration; `kinds` is empty if it has none."""

    num_layers: int
    kinds: tuple[str, ...]
    window_size: int | None
    chunk_size: int | None

    def window_size_of(self, index: int) -> int | None:
        """Return the window of a layer whose attention function is not told of it."""
        return self.window_size if self._kind(index) == "sliding_attention" else None

    def chunk_size_of(self, index: int) -> int | None:
        """Return the chunk size of a layer; attention functions are never told of it."""
        return self.chunk_size if self._kind(index) == "chunked_attention" else None

    @property
    def has_attention(self) -> bool:
        """Whether any layer attends."""
        return any(self.attends(index) for index in range(self.num_layers))

    def attends(self, index: int) -> bool:
        """Return whether a layer has attention."""
        return self._kind(index) not in OTHER_LAYERS

    def _kind(self, index: int) -> str:
        return self.kinds[index] if index < len(self.kinds) else "full_attention"


def layering(config: object) -> Layering:
    """Return the layering that a configuration states."""
    num_layers = getattr(config, "num_hidden_layers", 0)
    kinds = tuple(getattr(config, "layer_types", None) or ())
    if getattr(config, "model_type", None) in UNTOLD_WINDOWS:
        kinds = ("sliding_attention",) * num_layers
    window_size = _of_all_layers(config, "sliding_window")
    chunk_size = _of_all_layers(config, "attention_chunk_size")
    return Layering(
        num_layers=num_layers,
        kinds=kinds,
        window_size=window_size if isinstance(window_size, int) else None,
        chunk_size=chunk_size if isinstance(chunk_size, int) else None,
    )


def refuse_unsupported(config: object) -> None:
    """Raise UnsupportedModel if a feature of the model is not supported."""
    model_type = str(getattr(config, "model_type", "unnamed"))
    for why in _reasons(config):
        raise UnsupportedModel(model_type, why)


def _reasons(config: object) -> list[str]:
    model_type = getattr(config, "model_type", None)
    known = PAGED_LAYERS | (KNOWN_LAYERS if has_known_states(config) else frozenset())
    kinds = set(getattr(config, "layer_types", None) or ()) - known
    reasons = []
    if getattr(config, "is_encoder_decoder", False):
        reasons.append("they have an encoder beside the decoder")
    if kinds:
        named = ", ".join(sorted(kinds))
        reasons.append(f"their {named} layers keep no keys and values to page, nor a known state")
    layers = layering(config)
    if "chunked_attention" in layers.kinds and layers.chunk_size is None:
        reasons.append("they have chunked layers but state no attention_chunk_size for all")
    if model_type in OFFSET_POSITIONS:
        reasons.append("their positions do not count from 0")
    if model_type in DOUBTFUL_WINDOWS and _has_window(config):
        reasons.append("they state a window that transformers keeps to only in part")
    if any(rope.get("rope_type") == "dynamic" for rope in _ropes(config)):
        reasons.append("dynamic RoPE scaling makes one request's output depend on the others'")
    return reasons


def _of_all_layers(config: object, name: str) -> object:
    """Return a field that all layers share; None too where each layer has its own."""
    differing = getattr(config, "per_layer_attributes", None) or ()
    return None if name in differing else getattr(config, name, None)


def _has_window(config: object) -> bool:
    window = _of_all_layers(config, "sliding_window")
    return isinstance(window, int) and window < max_model_len(config)


def max_model_len(config: object) -> int:
    """Return the longest context that the positions were made for, RoPE scaling included.

    LongRoPE switches its frequencies for the whole batch once any position passes the original
    length, which would make requests depend on each other: so it ends there.
    """
    length = _stated_length(config)
    for each in _ropes(config):
        short = each.get("original_max_position_embeddings")
        if each.get("rope_type") == "longrope" and isinstance(short, int):
            length = min(length, short)
    rope = _rope(config)
    kind, factor = rope.get("rope_type"), rope.get("factor")
    original = rope.get("original_max_position_embeddings")
    if kind == "yarn" and isinstance(original, int) and isinstance(factor, int | float):
        return max(length, int(original * factor))
    if kind == "linear" and isinstance(factor, int | float):
        return int(length * factor)
    return length


def _stated_length(config: object) -> int:
    for name in LENGTH_NAMES:
        length = getattr(config, name, None)
        if isinstance(length, int) and length > 0:
            return length
    if has_known_states(config) and not layering(config).has_attention:
        return UNLIMITED_LEN
    model_type = str(getattr(config, "model_type", "unnamed"))
    raise UnsupportedModel(model_type, "the configuration states no context length")


def _rope(config: object) -> Mapping[str, object]:
    """Return the RoPE parameters that all layers share; those by kind of layer are final."""
    rope = getattr(config, "rope_parameters", None)
    return rope if isinstance(rope, dict) and "rope_type" in rope else {}


def _ropes(config: object) -> list[Mapping[str, object]]:
    """Return the RoPE parameters of every kind of layer."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        return []
    return (
        [rope]
        if "rope_type" in rope
        else [each for each in rope.values() if isinstance(each, dict)]
    )
