"""The shape of a model: how many numbers each token is multiplied with, and how its layers attend.
From it follows what a step computes and reads.

This module needs the standard library alone, so that every package may import it without torch.
"""

from dataclasses import dataclass

from quire.cache.spec import AttentionPattern


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Layers that attend alike.

    head_size, v_head_size: elements of a query and of a value that a head reads for one pair.
    token_bytes: what one layer keeps of a token, and so reads of each that a query sees.
    """

    num_layers: int
    num_heads: int
    head_size: int
    v_head_size: int
    token_bytes: int
    pattern: AttentionPattern


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Layers with a mixture of experts, of which each token uses `top_k`. `num_weights` is the
    number for one expert in one layer."""

    num_layers: int
    num_experts: int
    top_k: int
    num_weights: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shape of a whole model.

    num_dense_weights: those that every token is multiplied with, without the head.
    num_head_weights: those of the head, which only the rows that are sampled meet.
    num_operands: the numbers that products with these read and write for each token, without the
        head's and the experts'.
    dense_bytes, head_bytes: the bytes of both as they are kept, which a step reads.
    expert_weight_bytes: the bytes of one weight of an expert as it is kept.
    dtype_bytes: the bytes of a number that the model computes with.
    """

    num_layers: int
    hidden_size: int
    vocab_size: int
    dtype: str
    dtype_bytes: int
    num_dense_weights: int
    num_head_weights: int
    num_operands: int
    dense_bytes: int
    head_bytes: int
    attention: tuple[AttentionShape, ...]
    experts: tuple[ExpertShape, ...] = ()
    expert_weight_bytes: float = 0.0
