"""MLX: numbers of 1 to 8 bits in words of 32 bits, across them, and floats of 4 and 8 bits."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.loading.published.written import Stored, check_loaded, in_words, publish, random

FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def of_columns(scales: Tensor, numbers: Tensor) -> Tensor:
    return scales.repeat_interleave(numbers.shape[1] // scales.shape[1], 1)


def affine(weight: Tensor, num_bits: int, group_size: int = 32) -> Stored:
    numbers = random(weight, weight.shape, 1 << num_bits)
    shape = (len(weight), weight.shape[1] // group_size)
    scales, biases = (
        (random(weight, shape, limit) + 1).bfloat16() / limit for limit in (1000, 1001)
    )
    parts = {
        ".weight": in_words(numbers, num_bits).view(torch.uint32),
        ".scales": scales,
        ".biases": -biases,
    }
    # Products and sums of such numbers fit into 53 bits: they are rounded once, to float32.
    products = numbers.double() * of_columns(scales, numbers).double()
    return Stored(parts, (products - of_columns(biases, numbers).double()).float())


def floats(weight: Tensor, mode: str) -> Stored:
    num_bits, group_size = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}[mode]
    numbers = random(weight, weight.shape, 1 << num_bits)
    scales = random(weight, (len(weight), weight.shape[1] // group_size), 60) + 66
    if mode == "mxfp8":
        numbers[numbers % 128 == 127] = 0  # no numbers
        values = numbers.to(torch.uint8).view(torch.float8_e4m3fn).float()
    else:
        values = FP4[numbers]
    stored = scales.to(torch.uint8)
    sizes = stored.view(torch.float8_e4m3fn).float() if mode == "nvfp4" else 2.0 ** (scales - 127)
    parts = {".weight": in_words(numbers, num_bits).view(torch.uint32), ".scales": stored}
    return Stored(parts, values * of_columns(sizes, numbers))


def test_integers_of_all_bits(tmp_path: Path) -> None:
    """Each layer has settings of its own."""
    bits = {"q": 1, "k": 2, "v": 3, "o": 4, "gate": 5, "up": 6, "down": 8}
    settings: dict[str, object] = {"group_size": 64, "bits": 4}

    def quantised(module: str, weight: Tensor) -> Stored:
        num_bits = bits[module.rpartition(".")[2].removesuffix("_proj")]
        settings[module] = {"group_size": 32, "bits": num_bits}
        return affine(weight, num_bits)

    check_loaded(publish(tmp_path, settings, quantised, field="quantization"))


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_floats(mode: str, tmp_path: Path) -> None:
    group_size, num_bits = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}[mode]
    settings = {"group_size": group_size, "bits": num_bits, "mode": mode}
    made = publish(tmp_path, settings, lambda _, w: floats(w, mode), field="quantization")
    check_loaded(made)
