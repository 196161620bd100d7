"""Optimisations make models faster, most of them on a CPU; they have names, so that each can be
switched off alone.

This module needs the standard library alone, so that every package may import it without torch.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import TypeAlias


class Optimization(StrEnum):
    """One optimisation that changes no text beyond rounding, W8A8 apart: W8A32 quantises otherwise.

    AVX2, AVX512, AMX: kernels of that instruction set and of those that contain it.
    COMPRESSED_BF16: bfloat16 linear layers over weights in 12 bits; torch's without it.
    BF16_STORAGE: float32 linear layers over weights stored as bfloat16; torch's without it.
    GROUPED_WEIGHTS: float32 linear layers over the integers of files that are quantised in groups;
        they are widened once and for all without it.
    W8A8: products of int8 where weights are quantised; without it they are widened to float32.
    FUSED_LAYERS: norms, rotary embeddings and gated activations as one kernel each, and merged
        projections; also on GPUs.
    NATIVE_DECODER: all fused layers as one call.
    WEIGHT_RELOCATION: packed weights in one region of memory, in the order in which they are read.
    HUGE_PAGES: that region and the KV cache on huge pages.
    NATIVE_SAMPLER: sampling in C++, on GPUs by one kernel in Triton; torch's without it.
    FORCED_TOKENS: tokens that a grammar forces are computed together; one a step without it.
    PLANNED_SNAPSHOTS: snapshots of states where prompts part and before their ends.
    LAST_SNAPSHOTS: snapshots of states at the ends of prompts and outputs.
    """

    AVX2 = "avx2"
    AVX512 = "avx512"
    AMX = "amx"
    COMPRESSED_BF16 = "compressed-bf16"
    BF16_STORAGE = "bf16-storage"
    GROUPED_WEIGHTS = "grouped-weights"
    W8A8 = "w8a8"
    FUSED_LAYERS = "fused-layers"
    NATIVE_DECODER = "native-decoder"
    WEIGHT_RELOCATION = "weight-relocation"
    HUGE_PAGES = "huge-pages"
    NATIVE_SAMPLER = "native-sampler"
    FORCED_TOKENS = "forced-tokens"
    PLANNED_SNAPSHOTS = "planned-snapshots"
    LAST_SNAPSHOTS = "last-snapshots"


Disabled: TypeAlias = Collection[Optimization]
"""The optimisations that are switched off."""
