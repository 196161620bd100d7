"""Models of Llama shapes with random weights: their checkpoints, and the least that a step of them
must read and compute."""

from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from bench.gpu.speed.floor import Work

MAX_MODEL_LEN = 4096
ELEMENT_BYTES = torch.bfloat16.itemsize


class Llama(NamedTuple):
    """The shape of a Llama. `is_tied`: the table of input embeddings is the head too."""

    hidden: int
    mlp: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab: int
    is_tied: bool

    @property
    def width(self) -> int:
        """The elements of one head."""
        return self.hidden // self.num_heads

    @property
    def kv_token_bytes(self) -> int:
        """The bytes of a token's K and V in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.width * ELEMENT_BYTES


SIZES = {
    "tiny": Llama(64, 128, 2, 4, 2, 512, is_tied=True),
    "tiny-untied": Llama(64, 128, 2, 4, 2, 512, is_tied=False),
    "1b": Llama(2048, 8192, 16, 32, 8, 128256, is_tied=True),
    "8b": Llama(4096, 14336, 32, 32, 8, 128256, is_tied=False),
}
"""The last two have the dimensions of Llama 3.2 1B and Llama 3.1 8B, by their model cards."""


class Weights(NamedTuple):
    """The numbers of elements of a model: of all its weights, and of the table of input embeddings,
    which is as large as the head, and is the head where the two are tied."""

    total: int
    table: int
    is_tied: bool

    @property
    def step_elements(self) -> int:
        """The weights that a step reads whole: all but an input table that is nothing else, of
        which a token's row is read."""
        return self.total if self.is_tied else self.total - self.table

    @property
    def body(self) -> int:
        """The weights that every token of a step is multiplied with, those of the head left out:
        norms among them, which are few."""
        return self.step_elements - self.table


def count_weights(size: Llama) -> Weights:
    """Count what transformers builds, on no device."""
    with torch.device("meta"):
        model = _build(size)
    total = sum(weight.numel() for weight in model.parameters())
    return Weights(total, size.vocab * size.hidden, size.is_tied)


def decode_work(size: Llama, weights: Weights, num_requests: int, context: float) -> Work:
    """Return the work of a step of one token for each request, over contexts of that mean length:
    weights and K and V are read once; what the step writes is left out."""
    rows = 0 if weights.is_tied else num_requests * size.hidden
    weight_bytes = (weights.step_elements + rows) * ELEMENT_BYTES
    num_bytes = weight_bytes + num_requests * context * size.kv_token_bytes
    attention = 4 * size.num_layers * size.num_heads * size.width * context
    return Work(num_bytes, num_requests * (2 * weights.step_elements + attention))


def prefill_work(size: Llama, weights: Weights, num_tokens: int) -> Work:
    """Return the work of one prompt, of whose tokens only the last has logits."""
    seen = num_tokens * (num_tokens + 1) / 2
    attention = 4 * size.num_layers * size.num_heads * size.width * seen
    num_flops = 2 * (num_tokens * weights.body + weights.table) + attention
    return Work(weights.step_elements * ELEMENT_BYTES, num_flops)


def make_checkpoint(folder: Path, size: Llama, device: torch.device) -> None:
    """Write random weights in bfloat16, made on the device, unless `folder` has them."""
    if folder.exists():
        return
    torch.manual_seed(0)
    with torch.device(device):
        model = _build(size)
    unfinished = folder.with_suffix(".unfinished")
    model.save_pretrained(unfinished)
    unfinished.rename(folder)


def _build(size: Llama) -> PreTrainedModel:
    config = LlamaConfig(
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_kv_heads,
        vocab_size=size.vocab,
        max_position_embeddings=MAX_MODEL_LEN,
        tie_word_embeddings=size.is_tied,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.bfloat16
    )
    return model
