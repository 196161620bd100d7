"""The kernels between a decoder's linear layers: cases of well-known sizes."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from quire.models.attention.triton.tiles import DeviceProperties
from quire.models.layers.triton.launch import gate_constants, norm_constants, rope_constants
from quire.models.layers.triton.row_kernel import gate, norm, rope
from quire.models.native.decoder.fused import ACTIVATIONS, HeadLayout, NormParams
from tools.triton_figures.program import NAMES, Case, Kernels, Program

UNALIGNED = frozenset(("row_stride",))


class Sizes(NamedTuple):
    """The sizes of a layer. `kind` is an index into NORM_KINDS, `act` one of ACTIVATIONS."""

    hidden_size: int
    num_query: int
    num_key: int
    head_size: int
    width: int
    has_head_norms: bool = False
    kind: int = 0
    act: str = "silu"

    @property
    def heads(self) -> HeadLayout:
        scale = NormParams(torch.empty(self.head_size, device="meta"), 1e-6, self.kind)
        norms = (scale, scale) if self.has_head_norms else ()
        return HeadLayout(self.num_query, self.num_key, self.head_size, *norms)


LAYERS = {
    "896, 14 and 2 of 64, 4864": Sizes(896, 14, 2, 64, 4864),
    "4096, 32 and 8 of 128, 14336": Sizes(4096, 32, 8, 128, 14336),
    "5120, 64 and 8 of 128, 25600, normed": Sizes(5120, 64, 8, 128, 25600, has_head_norms=True),
    "5376, 32 and 16 of 128, 21504, normed": Sizes(
        5376, 32, 16, 128, 21504, has_head_norms=True, kind=1, act="gelu_tanh"
    ),
    "16384, 128 and 8 of 128, 53248": Sizes(16384, 128, 8, 128, 53248),
}
"""As Qwen2.5 0.5B, Llama 3 8B, Qwen3 32B, Gemma 3 27B and Llama 3.1 405B have them."""
FEW = {("4096, 32 and 8 of 128, 14336", "bf16"): (80, 90)}
"""The capabilities to compile some cases for where there is little time."""


def programs(sizes: Sizes, dtype: torch.dtype, _: DeviceProperties) -> Iterator[Program]:
    pointer = f"*{NAMES[dtype]}"
    rows = dict.fromkeys(("x", "added", "weight", "out", "cos", "sin"), pointer)
    numbers = dict.fromkeys(("epsilon", "query_epsilon", "key_epsilon"), "fp32")
    weight = pointer if sizes.has_head_norms else None
    types = {**rows, **numbers, "query_weight": weight, "key_weight": weight}
    act = ACTIVATIONS.index(sizes.act)
    for name, kernel, (values, num_warps) in (
        ("norm", norm, norm_constants(sizes.hidden_size, sizes.kind, dtype)),
        ("rope", rope, rope_constants(sizes.heads, sizes.head_size, dtype)),
        ("gate", gate, gate_constants(sizes.width, act, dtype)),
    ):
        yield Program(name, kernel, types, values, num_warps, unaligned=UNALIGNED)


def cases() -> Iterator[Case]:
    for name, sizes in LAYERS.items():
        for dtype in (torch.bfloat16, torch.float32):
            labels = (name, NAMES[dtype])
            yield Case(labels, partial(programs, sizes, dtype), FEW.get(labels, ()))


BETWEEN_LINEARS = Kernels(
    "Between linear layers",
    "Of the layers, the hidden size, the query and key heads with their size, and the width of the "
    "MLP; `norm` adds what comes before it, and `rope` norms the heads where they are.",
    ("layer", "dtype"),
    cases,
)
