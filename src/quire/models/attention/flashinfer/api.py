"""FlashInfer's two wrappers, as far as they are used and as versions 0.6 and 0.7 publish them:
https://docs.flashinfer.ai/api/attention.html. It is imported only where it is asked for.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, Protocol, TypedDict, Unpack

import torch
from torch import Tensor

PACKAGE = "flashinfer"
NHD = "NHD"
"""The layout of K and V: [pages, page_size, kv heads, head_size], each in a tensor of its own."""
NO_COMPILATION = {"FLASHINFER_DISABLE_JIT": "1"}
"""FlashInfer compiles what no installed package has compiled, for minutes, unless it is told not
to: it then raises `MissingJITCacheError`."""


class PlanTerms(TypedDict):
    """The terms that both wrappers' plans take by the same names."""

    num_qo_heads: int
    num_kv_heads: int
    page_size: int
    sm_scale: float
    window_left: int
    logits_soft_cap: float
    q_data_type: torch.dtype
    kv_data_type: torch.dtype


class PrefillPlan(PlanTerms):
    """int32 tensors of S sequences: what begins where in the rows of queries and in the pages, the
    pages, and the tokens in each last one. All but the pages are read on the host."""

    qo_indptr: Tensor
    paged_kv_indptr: Tensor
    paged_kv_indices: Tensor
    paged_kv_last_page_len: Tensor
    head_dim_qk: int
    causal: bool


class DecodePlan(PlanTerms):
    """As for `PrefillPlan`, with a query for each sequence."""

    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor
    head_dim: int


class DecodeOptions(TypedDict, total=False):
    """Options of the constructor. If `use_cuda_graph`, a plan copies what it is given into the
    three buffers, of which the first and the last fix the number of sequences."""

    use_cuda_graph: bool
    use_tensor_cores: bool
    paged_kv_indptr_buffer: Tensor
    paged_kv_indices_buffer: Tensor
    paged_kv_last_page_len_buffer: Tensor


class Wrapper(Protocol):
    """The calls that both wrappers have alike."""

    def reset_workspace_buffer(
        self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor
    ) -> None: ...

    def run(
        self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor | None = None
    ) -> Tensor:
        """Attend as was planned. `q` is [rows, heads, head_size], its last dimension dense."""
        ...


class PrefillWrapper(Wrapper, Protocol):
    """`BatchPrefillWithPagedKVCacheWrapper`: chunks of any lengths."""

    def plan(self, **terms: Unpack[PrefillPlan]) -> None: ...


class DecodeWrapper(Wrapper, Protocol):
    """`BatchDecodeWithPagedKVCacheWrapper`: chunks of one token."""

    def plan(self, **terms: Unpack[DecodePlan]) -> None: ...


class MakePrefill(Protocol):
    def __call__(self, float_workspace_buffer: Tensor, kv_layout: str) -> PrefillWrapper: ...


class MakeDecode(Protocol):
    def __call__(
        self, float_workspace_buffer: Tensor, kv_layout: str, **options: Unpack[DecodeOptions]
    ) -> DecodeWrapper: ...


class FlashInfer(NamedTuple):
    """The constructors of FlashInfer."""

    prefill: MakePrefill
    decode: MakeDecode


def why_not_installed() -> str | None:
    """Return why it cannot be imported, in words, or None if it can."""
    if find_spec(PACKAGE) is None:
        return "flashinfer is not installed; it is the extra `flashinfer`"
    return None


def load() -> FlashInfer:
    """Import it, told to compile nothing in this process."""
    os.environ.update(NO_COMPILATION)
    package = import_module(PACKAGE)
    return FlashInfer(
        package.BatchPrefillWithPagedKVCacheWrapper, package.BatchDecodeWithPagedKVCacheWrapper
    )
