"""The functions of fused.cpp over tensors: what stands between a decoder's linear layers, for rows
of float32 or bfloat16 on the CPU."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.native.binding import Signatures, bind

KINDS = ("rounded_first", "one_more")
"""How a norm multiplies by its weight: w * round(x), or (1 + w) * x rounded after."""
ACTS = ("silu", "gelu_tanh")
MAX_HEAD_WIDTH = 512


class Scale(NamedTuple):
    """Of an RMSNorm: `weight` [width], contiguous, and a kind of KINDS."""

    weight: Tensor
    epsilon: float
    kind: int


class Heads(NamedTuple):
    """How a row begins: query heads, then key heads, all of one width. `query`, `key`: the norms
    that they go through, both or none, of one kind."""

    num_query: int
    num_key: int
    width: int
    query: Scale | None = None
    key: Scale | None = None


@dataclass(frozen=True, slots=True)
class FusedKernels:
    """Each runs on as many threads as torch does. Tensors are contiguous but for what is said, and
    all of one of `dtypes`."""

    takes: Callable[[bool], bool]
    norm_into: Callable[..., None]
    rope_over: Callable[..., None]
    gate_into: Callable[..., None]
    sum_into: Callable[..., None]

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """bfloat16 is among them where the instruction set has its dot product."""
        return frozenset({torch.float32, *([torch.bfloat16] if self.takes(True) else [])})

    def norm(self, x: Tensor, scale: Scale, added: Tensor | None = None) -> Tensor:
        """RMSNorm(x + added) of rows [..., width]; the sum is left in `x`."""
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

    def rope(self, x: Tensor, heads: Heads, cosines: Tensor, sines: Tensor) -> None:
        """Norms and turns the heads that rows [T, any] begin with, in place. `cosines`, `sines`
        [T, rotary]: of the first `rotary` elements of each head."""
        query, key = heads.query, heads.key
        self.rope_over(
            x.dtype == torch.bfloat16,
            x.data_ptr(),
            len(x),
            x.shape[-1],
            heads.num_query,
            heads.num_key,
            heads.width,
            cosines.data_ptr(),
            sines.data_ptr(),
            cosines.shape[-1],
            None if query is None else query.weight.data_ptr(),
            None if key is None else key.weight.data_ptr(),
            0.0 if query is None else query.epsilon,
            0.0 if key is None else key.epsilon,
            0 if query is None else query.kind,
            torch.get_num_threads(),
        )

    def gate(self, x: Tensor, act: int) -> Tensor:
        """[..., 2 * width] to [..., width]: act of ACTS of the first half, times the second."""
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

    def sum(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b, of the same shape."""
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


ADDRESS, COUNT, NUMBER, FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_bool
SIGNATURES: Signatures = {
    "quire_fused_takes": (FLAG, (FLAG,)),
    "quire_norm": (
        None,
        (*(FLAG, ADDRESS, ADDRESS, ADDRESS, COUNT, COUNT), *(NUMBER, COUNT, ADDRESS, COUNT)),
    ),
    "quire_rope": (
        None,
        (
            *(FLAG, ADDRESS, COUNT, COUNT, COUNT, COUNT, COUNT),
            *(ADDRESS, ADDRESS, COUNT, ADDRESS, ADDRESS, NUMBER, NUMBER, COUNT, COUNT),
        ),
    ),
    "quire_gate": (None, (FLAG, ADDRESS, COUNT, COUNT, COUNT, ADDRESS, COUNT)),
    "quire_sum": (None, (FLAG, ADDRESS, ADDRESS, COUNT, COUNT, ADDRESS, COUNT)),
}


def bind_fused(library: ctypes.CDLL, isa: str) -> FusedKernels | None:
    """None: the library has none."""
    functions = bind(library, isa, SIGNATURES)
    return None if functions is None else FusedKernels(*functions)
