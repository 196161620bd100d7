"""FlashInfer's wrappers, and planning them: what it works out on the host before a step, once for
all layers that are alike.

A plan is written to pinned memory of its wrapper, and copied to the device without waiting. One
that is made before the copy of the last is done would overwrite it on the way (mini-sglang 103,
vllm 40756): so the host waits for that copy, which a step later is long done.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.attention.flashinfer.api import (
    NHD,
    DecodeWrapper,
    FlashInfer,
    PlanTerms,
    PrefillWrapper,
)
from quire.models.attention.flashinfer.kind import Kind
from quire.models.attention.flashinfer.pages import Pages

MIB = 2**20
WORKSPACE_BYTES = 384 * MIB
"""For the parts of contexts that are cut, which all wrappers share: FlashInfer advises 128 MiB, of
which 8 query heads of 128 to a K/V head can need more on an H100 (264 tiles of 128 rows, in
float32)."""
PLAN_BYTES = 8 * MIB
"""A wrapper keeps as much of its plan on the device, and again on the host."""


@dataclass(frozen=True, slots=True)
class Target:
    """All wrappers of a store are for one dtype of queries, keys and values, blocks of as many
    tokens, and one device. They share one `workspace`, since one runs after the other."""

    flashinfer: FlashInfer
    dtype: torch.dtype
    block_size: int
    workspace: Tensor

    @property
    def device(self) -> torch.device:
        return self.workspace.device

    def terms(self, kind: Kind) -> PlanTerms:
        return {
            "num_qo_heads": kind.num_heads,
            "num_kv_heads": kind.num_kv_heads,
            "page_size": self.block_size,
            "sm_scale": kind.scale,
            "window_left": kind.window_left,
            "logits_soft_cap": kind.softcap or 0.0,
            "q_data_type": self.dtype,
            "kv_data_type": self.dtype,
        }


@dataclass(frozen=True, slots=True)
class Copied:
    """The copies of a wrapper's last plan. `event` is None on a CPU, where none is late."""

    event: torch.cuda.Event | None

    def wait(self) -> None:
        if self.event is not None:
            self.event.synchronize()

    def mark(self) -> None:
        if self.event is not None:
            self.event.record()


@dataclass(frozen=True, slots=True)
class Chunks:
    """A wrapper for chunks of any lengths."""

    target: Target
    wrapper: PrefillWrapper
    copied: Copied

    def plan(self, kind: Kind, pages: Pages, query_starts: Tensor) -> None:
        self.copied.wait()
        self.wrapper.plan(
            qo_indptr=query_starts,
            paged_kv_indptr=pages.starts,
            paged_kv_indices=pages.ids,
            paged_kv_last_page_len=pages.last_sizes,
            head_dim_qk=kind.head_size,
            causal=True,
            **self.target.terms(kind),
        )
        self.copied.mark()


@dataclass(frozen=True, slots=True)
class Singles:
    """A wrapper for chunks of one token."""

    target: Target
    wrapper: DecodeWrapper
    copied: Copied

    def plan(self, kind: Kind, pages: Pages) -> None:
        self.copied.wait()
        self.wrapper.plan(
            indptr=pages.starts,
            indices=pages.ids,
            last_page_len=pages.last_sizes,
            head_dim=kind.head_size,
            **self.target.terms(kind),
        )
        self.copied.mark()


@dataclass(frozen=True, slots=True)
class ReplayMemory:
    """Memory that replayed steps of any number of sequences share, since one is planned and then
    replayed before the next: the ids of their pages, as many as there can be, and the plan."""

    ids: Tensor
    plan: Tensor


def build_chunks(target: Target) -> Chunks:
    wrapper = target.flashinfer.prefill(target.workspace, NHD)
    return Chunks(target, wrapper, _copied(target))


def build_singles(target: Target, kind: Kind) -> Singles:
    wrapper = target.flashinfer.decode(
        target.workspace, NHD, use_tensor_cores=kind.uses_tensor_cores
    )
    return Singles(target, wrapper, _copied(target))


def build_replayed(target: Target, kind: Kind, num_seqs: int, memory: ReplayMemory) -> Singles:
    """Return a wrapper whose runs can be captured, and replayed with other plans of as many
    sequences."""
    numbers = torch.zeros(2 * num_seqs + 1, dtype=torch.int32, device=target.device)
    wrapper = target.flashinfer.decode(
        target.workspace,
        NHD,
        use_cuda_graph=True,
        use_tensor_cores=kind.uses_tensor_cores,
        paged_kv_indptr_buffer=numbers[: num_seqs + 1],
        paged_kv_indices_buffer=memory.ids,
        paged_kv_last_page_len_buffer=numbers[num_seqs + 1 :],
    )
    wrapper.reset_workspace_buffer(target.workspace, memory.plan)
    return Singles(target, wrapper, _copied(target))


def _copied(target: Target) -> Copied:
    if target.device.type != "cuda":
        return Copied(None)
    return Copied(torch.cuda.Event())  # type: ignore[no-untyped-call]
