"""Integers of compressed-tensors: packed in words, or in bytes, with scales of groups or rows."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.loading.published.written import (
    Stored,
    check_loaded,
    check_state,
    in_words,
    publish,
    random,
)


def settings(num_bits: int, name: str = "pack-quantized", **further: object) -> dict[str, object]:
    weights = {"num_bits": num_bits, "type": "int", "strategy": "group", "group_size": 32}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        **further,
    }


def half_scales(weight: Tensor, num_groups: int) -> Tensor:
    return (random(weight, (len(weight), num_groups), 999) + 1).bfloat16() / 65536


def packed(
    weight: Tensor, num_bits: int, *, num_groups: int = 2, is_symmetric: bool = False
) -> Stored:
    num_rows, num_columns = weight.shape
    half = 1 << num_bits - 1
    numbers = random(weight, weight.shape, 2 * half)
    scales = half_scales(weight, num_groups)
    zeros = random(weight, (num_rows, num_groups), 2 * half - 1)
    parts = {
        ".weight_packed": in_words(numbers, num_bits),
        ".weight_scale": scales,
        ".weight_shape": torch.tensor([num_rows, num_columns]),
    }
    if is_symmetric:
        zeros = torch.full_like(zeros, half)
    else:
        parts[".weight_zero_point"] = in_words(zeros.T.contiguous(), num_bits).T
    return Stored(parts, apart(numbers, zeros, scales))


def apart(numbers: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    """Return the weight of numbers [N, K], and of zeros and scales [N, G]."""
    group_size = numbers.shape[1] // scales.shape[1]
    of_columns = torch.arange(numbers.shape[1]) // group_size
    return (numbers - zeros[:, of_columns]).float() * scales.float()[:, of_columns]


@pytest.mark.parametrize("num_bits", [2, 4, 8])
@pytest.mark.parametrize("is_symmetric", [False, True])
def test_packed(num_bits: int, is_symmetric: bool, tmp_path: Path) -> None:
    check_state(
        publish(
            tmp_path,
            settings(num_bits),
            lambda _, weight: packed(weight, num_bits, is_symmetric=is_symmetric),
        )
    )


def test_a_model_of_packed_rows(tmp_path: Path) -> None:
    check_loaded(publish(tmp_path, settings(4), lambda _, w: packed(w, 4, num_groups=1)))


def test_columns_in_an_order_of_their_own(tmp_path: Path) -> None:
    def quantise(_: str, weight: Tensor) -> Stored:
        order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(3))
        groups = order // (weight.shape[1] // 2)
        numbers, scales = random(weight, weight.shape, 16), half_scales(weight, 2)
        parts = {
            ".weight_packed": in_words(numbers, 4),
            ".weight_scale": scales,
            ".weight_g_idx": groups.to(torch.int32),
        }
        return Stored(parts, (numbers - 8).float() * scales.float()[:, groups])

    check_state(publish(tmp_path, settings(4), quantise))


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("is_symmetric", [False, True])
def test_bytes(num_groups: int, is_symmetric: bool, tmp_path: Path) -> None:
    def quantise(_: str, weight: Tensor) -> Stored:
        numbers = random(weight, weight.shape, 255) - 127
        scales = half_scales(weight, num_groups)
        zeros = random(weight, scales.shape, 99) * (not is_symmetric)
        parts = {".weight": numbers.to(torch.int8), ".weight_scale": scales}
        parts |= {} if is_symmetric else {".weight_zero_point": zeros.to(torch.int8)}
        return Stored(parts, apart(numbers, zeros, scales))

    check_state(publish(tmp_path, settings(8, "int-quantized"), quantise))


def test_bytes_with_one_scale(tmp_path: Path) -> None:
    def quantise(_: str, weight: Tensor) -> Stored:
        numbers = random(weight, weight.shape, 255) - 127
        scale, zero = half_scales(weight, 1)[0], torch.tensor([5])
        parts = {".weight": numbers, ".weight_scale": scale, ".weight_zero_point": zero}
        stored = {
            name: each.to(torch.int8) if each.dtype == torch.int64 else each
            for name, each in parts.items()
        }
        return Stored(stored, (numbers - zero).float() * scale.float())

    check_state(publish(tmp_path, settings(8, "naive-quantized"), quantise))


def test_bits_by_the_names_of_layers(tmp_path: Path) -> None:
    """A group of names is asked before one of a class, wherever it stands."""
    of_class = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}
    of_names = {
        "targets": ["re:.*down_proj$", "model.layers.0.self_attn.q_proj"],
        "weights": {"num_bits": 8, "type": "int"},
        "format": "pack-quantized",
    }

    def quantise(name: str, weight: Tensor) -> Stored:
        has_more = "down_proj" in name or name == "model.layers.0.self_attn.q_proj"
        return packed(weight, 8 if has_more else 4)

    groups = {"group_0": of_class, "group_1": of_names}
    told = {**settings(4), "format": "mixed-precision", "config_groups": groups}
    check_state(publish(tmp_path, told, quantise))
