"""The kernel that samples: cases of well-known vocabularies."""

from collections.abc import Iterator
from functools import partial

import torch

from quire.engine.sampling.triton.launch import NUM_WARPS, sample_constants
from quire.engine.sampling.triton.sample_kernel import sample
from quire.models.attention.triton.tiles import DeviceProperties
from tools.triton_figures.program import NAMES, Case, Kernels, Program

VOCABULARIES = {"32000": 32_000, "128256": 128_256, "151936": 151_936, "262144": 262_144}
"""As Llama 2, Llama 3, Qwen 3 and Gemma 3 have them."""
FEW = {("128256", "bf16"): (80, 90)}
"""The capabilities to compile some cases for where there is little time."""
TYPES = {
    "order": "*i64",
    "params": "*fp64",
    "listed": "*i32",
    "token_ids": "*i64",
    "is_finite": "*i64",
}


def programs(vocab_size: int, dtype: torch.dtype, _: DeviceProperties) -> Iterator[Program]:
    types = {"logits": f"*{NAMES[dtype]}", **TYPES}
    values = {
        **sample_constants(vocab_size),
        "IS_ORDERED": dtype is torch.float32,
        "IS_INTERPRETED": False,
    }
    yield Program("sample", sample, types, values, NUM_WARPS, has_fp_fusion=False)


def cases() -> Iterator[Case]:
    for name, vocab_size in VOCABULARIES.items():
        for dtype in (torch.bfloat16, torch.float32):
            labels = (name, NAMES[dtype])
            yield Case(labels, partial(programs, vocab_size, dtype), FEW.get(labels, ()))


SAMPLING = Kernels(
    "Sampling",
    "By the size of the vocabulary; float32 is what rows with edits are copied to.",
    ("vocabulary", "dtype"),
    cases,
)
