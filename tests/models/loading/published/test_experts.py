"""Experts of published formats: one by one, as most checkpoints have them and transformers merges
them, and merged in one tensor."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.families import SERVED, Fields
from tests.models.loading.published.test_float8 import FP8, float8, scales_of
from tests.models.loading.published.test_integers import packed, settings
from tests.models.loading.published.written import Stored, check_loaded, check_state, publish

WIDE: Fields = {
    **dict.fromkeys(("hidden_size", "intermediate_size"), 64),
    **dict.fromkeys(("moe_intermediate_size", "head_dim"), 32),
}
BLOCK = 24
FP8_BLOCKS = {**FP8, "weight_block_size": [BLOCK, BLOCK]}


def blocks(_: str, weight: Tensor) -> Stored:
    """A matrix, or those of experts, in blocks that do not divide it."""
    rows, columns = weight.shape[-2:]
    grid = (*weight.shape[:-2], -(-rows // BLOCK), -(-columns // BLOCK))
    scales = scales_of(weight, *grid)
    wide = scales[..., torch.arange(rows) // BLOCK, :][..., torch.arange(columns) // BLOCK]
    ending = "_scale_inv" if weight.dim() == 3 else ".weight_scale_inv"
    parts = {"" if weight.dim() == 3 else ".weight": float8(weight), ending: scales}
    return Stored(parts, float8(weight).float() * wide)


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe", "mimo_v2_flash", "minimax_m2"])
def test_one_by_one_in_blocks_of_float8(name: str, tmp_path: Path) -> None:
    check_loaded(publish(tmp_path, FP8_BLOCKS, blocks, SERVED[name]))


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_one_by_one_in_packed_integers(name: str, tmp_path: Path) -> None:
    family = SERVED[name]._replace(fields={**SERVED[name].fields, **WIDE})
    check_loaded(publish(tmp_path, settings(4), lambda _, weight: packed(weight, 4), family))


def test_merged(tmp_path: Path) -> None:
    """As transformers stores those of gpt-oss and Llama 4."""
    check_loaded(publish(tmp_path, FP8_BLOCKS, blocks, SERVED["llama4_text"]))


@pytest.mark.parametrize("shape", ["one", "experts", "columns"])
def test_merged_with_scales_of_experts(shape: str, tmp_path: Path) -> None:
    """As ModelOpt and fbgemm store those of Llama 4."""

    def quantise(_: str, weight: Tensor) -> Stored:
        num_experts, num_columns = len(weight), weight.shape[-1]
        shapes = {"one": (1,), "experts": (num_experts,), "columns": (num_experts, 1, num_columns)}
        counts = shapes["one" if weight.dim() == 2 else shape]
        scales = scales_of(weight, *counts)
        wide = scales.view(*counts, *(1,) * (weight.dim() - len(counts)))
        if weight.dim() == 2:
            return Stored(
                {".weight": float8(weight), ".weight_scale": scales}, float8(weight).float() * wide
            )
        parts = {"": float8(weight), "_weight_scale": scales, "_input_scale": torch.ones(1)}
        return Stored(parts, float8(weight).float() * wide)

    told = {"quant_method": "modelopt", "quant_algo": "FP8"}
    check_state(publish(tmp_path, told, quantise, SERVED["llama4_text"]))
