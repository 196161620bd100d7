"""The interface of kernels for what lies between a decoder's linear layers."""

from typing import Protocol

import torch
from torch import Tensor

from quire.models.native.decoder.fused import HeadLayout, NormParams


class LayerKernels(Protocol):
    """Norms, rotary embeddings, gated activations and sums over contiguous rows of one of `dtypes`,
    on the device of the tensors. Every row is computed by itself, so that it is the same alone and
    in company."""

    @property
    def dtypes(self) -> frozenset[torch.dtype]: ...

    def norm(self, x: Tensor, scale: NormParams, added: Tensor | None = None) -> Tensor:
        """Return RMSNorm(x + added) of rows [..., hidden_size]; the sum is left in `x`."""
        ...

    def rope(self, x: Tensor, heads: HeadLayout, cos: Tensor, sin: Tensor) -> None:
        """Apply the norms and rotary embeddings to the heads that rows [T, any] begin with.

        Computes in place. `cos` and `sin` are [T, rotary_dim]; the first `rotary_dim` elements of
        each head are rotated (RoPE, arXiv 2104.09864).
        """

    def gate(self, x: Tensor, act: int) -> Tensor:
        """Return act(first half) * second half of rows: [..., 2 * width] to [..., width]. `act` is
        an index into ACTIVATIONS."""
        ...

    def gate_heads(self, x: Tensor, gates: Tensor) -> None:
        """Multiply heads [T, heads, head_size] by the sigmoids of `gates`, whose heads are each
        contiguous. Computes in place."""

    def sum(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a + b of two tensors of the same shape."""
        ...
