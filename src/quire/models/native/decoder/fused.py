"""The functions of fused.cpp over tensors: norms, rotary embeddings, gated activations and sums
between a decoder's linear layers, for rows of float32 or bfloat16 on the CPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.native.library import Library

NORM_KINDS = ("rounded_first", "one_more")
"""The ways in which an RMSNorm multiplies by its weight w: w * round(x), or round((1 + w) * x)."""
ACTIVATIONS = ("silu", "gelu_tanh")
MAX_HEAD_SIZE = 512


class NormParams(NamedTuple):
    """An RMSNorm: `weight` [size], contiguous; `kind` is an index into NORM_KINDS."""

    weight: Tensor
    epsilon: float
    kind: int


class HeadLayout(NamedTuple):
    """The heads with which a row of a QKV product begins: query heads, then key heads, of one head
    size.

    query, key: the norms that the heads go through: both or neither, of one kind.
    """

    num_query: int
    num_key: int
    head_size: int
    query: NormParams | None = None
    key: NormParams | None = None


@dataclass(frozen=True, slots=True)
class FusedKernels:
    """Kernels that run on as many threads as torch does.

    Tensors are on the CPU, contiguous where nothing else is said, and all of one of `dtypes`.
    """

    takes: Callable[[bool], bool]
    norm_into: Callable[..., None]
    rope_over: Callable[..., None]
    gate_into: Callable[..., None]
    gate_heads_of: Callable[..., None]
    sum_into: Callable[..., None]

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """float32, and bfloat16 where the instruction set has its dot product."""
        return frozenset({torch.float32, *([torch.bfloat16] if self.takes(True) else [])})

    def norm(self, x: Tensor, scale: NormParams, added: Tensor | None = None) -> Tensor:
        """Return RMSNorm(x + added) of rows [..., hidden_size]; the sum is left in `x`."""
        out, width = torch.empty_like(x), x.shape[-1]
        self.norm_into(
            x.dtype == torch.bfloat16,
            x.data_ptr(),
            None if added is None else added.data_ptr(),
            scale.weight.data_ptr(),
            x.numel() // width,
            width,
            scale.epsilon,
            scale.kind,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out

    def rope(self, x: Tensor, heads: HeadLayout, cos: Tensor, sin: Tensor) -> None:
        """Apply the norms and rotary embeddings to the heads that rows [T, any] begin with.

        Computes in place. `cos` and `sin` are [T, rotary_dim]; the first `rotary_dim` elements of
        each head are rotated (RoPE, arXiv 2104.09864).
        """
        query, key = heads.query, heads.key
        self.rope_over(
            x.dtype == torch.bfloat16,
            x.data_ptr(),
            len(x),
            x.shape[-1],
            heads.num_query,
            heads.head_size,
            heads.num_key,
            heads.head_size,
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[-1],
            None if query is None else query.weight.data_ptr(),
            None if key is None else key.weight.data_ptr(),
            0.0 if query is None else query.epsilon,
            0.0 if key is None else key.epsilon,
            0 if query is None else query.kind,
            torch.get_num_threads(),
        )

    def gate(self, x: Tensor, act: int) -> Tensor:
        """Return act(first half) * second half of rows: [..., 2 * width] to [..., width].

        `act` is an index into ACTIVATIONS.
        """
        width = x.shape[-1] // 2
        out = x.new_empty(*x.shape[:-1], width)
        rows = x.numel() // (2 * width)
        self.gate_into(
            x.dtype == torch.bfloat16,
            x.data_ptr(),
            rows,
            width,
            act,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out

    def gate_heads(self, x: Tensor, gates: Tensor) -> None:
        """Multiply heads [T, heads, head_size] by the sigmoids of `gates`, whose heads are each
        contiguous. Computes in place."""
        num_tokens, num_heads, head_size = x.shape
        self.gate_heads_of(
            x.dtype == torch.bfloat16,
            x.data_ptr(),
            gates.data_ptr(),
            num_tokens,
            num_heads,
            head_size,
            gates.stride(0),
            gates.stride(1),
            torch.get_num_threads(),
        )

    def sum(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a + b of two tensors of the same shape."""
        out, width = torch.empty_like(a), a.shape[-1]
        self.sum_into(
            a.dtype == torch.bfloat16,
            a.data_ptr(),
            b.data_ptr(),
            a.numel() // width,
            width,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


def bind_fused(library: Library) -> FusedKernels:
    """Return the kernels."""
    return library.bind(
        FusedKernels,
        takes="quire_fused_takes",
        norm_into="quire_norm",
        rope_over="quire_rope",
        gate_into="quire_gate",
        gate_heads_of="quire_gate_heads",
        sum_into="quire_sum",
    )
