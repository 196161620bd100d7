"""GPTQ and AWQ: integers in words of 32 bits, with scales and zero points of groups of columns."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.models.loading.weight_files import read_headers
from tests.models.loading.published.written import Stored, check_loaded, in_words, publish, random

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The order in which AutoAWQ puts the rows of eight into a word, the lowest bits first."""


def random_scales(weight: Tensor) -> Tensor:
    return (random(weight, (2, len(weight)), 999) + 1).half() / 65536


def gptq(
    weight: Tensor, *, num_bits: int = 4, groups: Tensor | None = None, shift: int = 1
) -> Stored:
    num_rows, num_columns = weight.shape
    numbers = random(weight, weight.shape, 1 << num_bits)
    zeros = random(weight, (2, num_rows), (1 << num_bits) - 1)
    scales = random_scales(weight)
    of_columns = torch.arange(num_columns) // (num_columns // 2) if groups is None else groups
    parts = {
        ".qweight": in_words(numbers, num_bits).T,
        ".qzeros": in_words(zeros, num_bits),
        ".scales": scales,
        ".g_idx": of_columns.to(torch.int32),
    }
    apart = numbers - (zeros + shift)[of_columns].T
    return Stored(parts, apart.float() * scales.float()[of_columns].T)


def awq(weight: Tensor) -> Stored:
    num_rows = len(weight)
    numbers, zeros = random(weight, weight.shape, 16), random(weight, (2, num_rows), 15)
    scales = random_scales(weight)
    parts = {
        ".qweight": in_words(numbers.T.contiguous(), 4, AWQ_ORDER),
        ".qzeros": in_words(zeros, 4, AWQ_ORDER),
        ".scales": scales,
    }
    of_columns = torch.arange(weight.shape[1]) // (weight.shape[1] // 2)
    return Stored(parts, (numbers - zeros[of_columns].T).float() * scales.float()[of_columns].T)


@pytest.mark.parametrize("num_bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("layout", "shift"), [("gptq", 1), ("gptq_v2", 0)])
def test_gptq(num_bits: int, layout: str, shift: int, tmp_path: Path) -> None:
    settings = {**GPTQ, "bits": num_bits, "checkpoint_format": layout}
    check_loaded(publish(tmp_path, settings, lambda _, w: gptq(w, num_bits=num_bits, shift=shift)))


def test_columns_in_an_order_of_their_own(tmp_path: Path) -> None:
    def quantised(_: str, weight: Tensor) -> Stored:
        order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(3))
        return gptq(weight, groups=order // (weight.shape[1] // 2))

    check_loaded(publish(tmp_path, {**GPTQ, "desc_act": True}, quantised))


def test_awq(tmp_path: Path) -> None:
    check_loaded(publish(tmp_path, AWQ, lambda _, weight: awq(weight)))


def test_headers_tell_of_whole_weights(tmp_path: Path) -> None:
    """Their sizes in the model, and in the file."""
    folder = publish(tmp_path, GPTQ, lambda _, weight: gptq(weight)).folder
    tensors = {tensor.name: tensor for tensor in read_headers(folder)}
    query = tensors["model.layers.0.self_attn.q_proj.weight"]
    assert query.shape == (64, 64) and query.bytes_as(2) == 64 * 64 * 2
    assert query.num_bytes == 64 * 64 // 2 + 2 * 64 // 2 + 2 * 64 * 2 + 64 * 4
