"""What is known of a loaded model: measured by a probe where it can be, else read from its files.

Standard library only, so that every room may look at the facts without paying for torch.
"""

from dataclasses import dataclass

from quire.cache.spec import FullAttentionSpec, bytes_per_block


class CheckpointError(Exception):
    """The files of a model are missing or unusable; the message says which and what to do."""


class UnsupportedModel(Exception):
    """A model that Quire would serve wrongly, refused by name and with the reason."""

    def __init__(self, model_type: str, why: str) -> None:
        super().__init__(f"{model_type} models are not supported: {why}")
        self.model_type = model_type
        self.why = why


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One attention layer as it called its attention function. `window` None: it sees all."""

    index: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None

    def kv_spec(self, element_bytes: int) -> FullAttentionSpec:
        """What the cache keeps of this layer: all of it, behind a window too."""
        return FullAttentionSpec(self.num_kv_heads, self.head_dim, self.head_dim, element_bytes)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`max_model_len`: the longest context the weights were made for, prompt and output together.
    `dtype`: float32, float16 or bfloat16, of the weights and of K and V."""

    model_type: str
    layers: tuple[LayerFacts, ...]
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    dtype_bytes: int

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block id over all layers."""
        return bytes_per_block(
            [layer.kv_spec(self.dtype_bytes) for layer in self.layers], block_size
        )
