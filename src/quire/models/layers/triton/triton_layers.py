"""The kernels between a decoder's linear layers, in Triton: one launch each."""

from dataclasses import dataclass

import torch
from torch import Tensor
from triton import cdiv

from quire.models.attention.triton.launch import DTYPES
from quire.models.layers.triton.launch import gate_constants, norm_constants, rope_constants
from quire.models.layers.triton.row_kernel import gate, norm, rope
from quire.models.native.decoder.fused import HeadLayout, NormParams
from quire.models.triton_device import is_interpreted


@dataclass(frozen=True, slots=True)
class TritonLayers:
    """`LayerKernels` on a GPU that Triton's kernels run on, or in its interpreter on a CPU."""

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """float32, float16 and, but in the interpreter, which lacks it, bfloat16."""
        return frozenset(DTYPES) - ({torch.bfloat16} if is_interpreted() else frozenset())

    def norm(self, x: Tensor, scale: NormParams, added: Tensor | None = None) -> Tensor:
        """Return RMSNorm(x + added) of rows [..., hidden_size]; the sum is left in `x`."""
        out, width = torch.empty_like(x), x.shape[-1]
        constants, num_warps = norm_constants(width, scale.kind, x.dtype)
        norm[(x.numel() // width,)](
            *(x, added, scale.weight, out, scale.epsilon), **constants, num_warps=num_warps
        )
        return out

    def rope(self, x: Tensor, heads: HeadLayout, cos: Tensor, sin: Tensor) -> None:
        """Apply the norms and rotary embeddings to the heads that rows [T, any] begin with, in
        place. `cos` and `sin` are [T, rotary_dim]."""
        query, key = heads.query, heads.key
        constants, num_warps = rope_constants(heads, cos.shape[-1], x.dtype)
        rope[(len(x), heads.num_query + heads.num_key)](
            *(x, cos.contiguous(), sin.contiguous()),
            *(None if norm is None else norm.weight for norm in (query, key)),
            *(0.0 if norm is None else norm.epsilon for norm in (query, key)),
            x.stride(0),
            **constants,
            num_warps=num_warps,
        )

    def gate(self, x: Tensor, act: int) -> Tensor:
        """Return act(first half) * second half of rows: [..., 2 * width] to [..., width]."""
        width = x.shape[-1] // 2
        out = x.new_empty(*x.shape[:-1], width)
        constants, num_warps = gate_constants(width, act, x.dtype)
        grid = (out.numel() // width, cdiv(width, constants["COLUMNS"]))
        gate[grid](x, out, **constants, num_warps=num_warps)
        return out

    def gate_heads(self, x: Tensor, gates: Tensor) -> None:
        """Multiply heads [T, heads, head_size] by the sigmoids of `gates`, in place."""
        x *= torch.sigmoid(gates)

    def sum(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a + b of two tensors of the same shape."""
        return a + b
