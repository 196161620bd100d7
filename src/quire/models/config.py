"""What is known of a loaded model: measured by a probe where it can be, else read from its files.

Standard library only, so that every room may look at the facts without paying for torch.
"""

from dataclasses import dataclass


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

    @property
    def kv_width(self) -> int:
        """Numbers stored for each token, K and V together."""
        return 2 * self.num_kv_heads * self.head_dim


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

    @property
    def kv_bytes_per_token(self) -> int:
        return sum(layer.kv_width for layer in self.layers) * self.dtype_bytes
