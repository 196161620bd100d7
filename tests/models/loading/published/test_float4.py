"""MXFP4 and NVFP4: floats of 4 bits, two in a byte, as gpt-oss, ModelOpt and compressed-tensors
store them."""

from pathlib import Path

import torch
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.models.families import SERVED
from tests.models.loading.published.written import (
    Stored,
    check_loaded,
    check_state,
    publish,
    random,
)

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
GPT_OSS = SERVED["gpt_oss"]._replace(
    fields={**SERVED["gpt_oss"].fields, "hidden_size": 64, "head_dim": 16}
)
"""Rows of experts are whole groups of 32."""
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}


def nibbles_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return random nibbles in pairs, the first of each the lower, and their numbers."""
    nibbles = random(weight, weight.shape, 16)
    return (nibbles[..., ::2] | nibbles[..., 1::2] << 4).to(torch.uint8), VALUES[nibbles]


def of_groups(scales: Tensor, group_size: int) -> Tensor:
    return scales.float().repeat_interleave(group_size, -1)


def experts(name: str, weight: Tensor) -> Stored:
    """Experts [E, K, N], which transformers takes apart; other layers as they are."""
    if "experts" not in name:
        return Stored({".weight": weight}, weight)
    packed, _ = nibbles_of(weight.mT)
    blocks = packed.view(*packed.shape[:-1], -1, 16)
    scales = (random(weight, blocks.shape[:-1], 20) + 110).to(torch.uint8)
    parts = {"_blocks": blocks, "_scales": scales}
    return Stored(parts, convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))


def test_gpt_oss(tmp_path: Path) -> None:
    check_loaded(publish(tmp_path, {"quant_method": "mxfp4"}, experts, GPT_OSS))


def test_mxfp4_of_every_nibble_and_exponent(tmp_path: Path) -> None:
    """Down to the smallest, whose numbers are subnormal."""

    def quantise(name: str, weight: Tensor) -> Stored:
        if "gate_up" not in name:
            return experts(name, weight)
        nibbles = torch.arange(256, dtype=torch.uint8).view(-1, 16)
        blocks = nibbles.repeat(weight.numel() // 512, 1).view(len(weight), -1, 2, 16)
        scales = torch.arange(blocks[..., 0].numel()).view(blocks.shape[:-1]) * 7 % 250
        scales = scales.to(torch.uint8)
        parts = {"_blocks": blocks, "_scales": scales}
        return Stored(parts, convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))

    check_state(publish(tmp_path, {"quant_method": "mxfp4"}, quantise, GPT_OSS))


def nv(packed: str, factor_name: str, weight: Tensor) -> Stored:
    """A weight whose scales in float8 a factor multiplies, or divides if it is global."""
    nibbles, numbers = nibbles_of(weight)
    scales = (weight[:, ::16].abs() + 0.1).to(torch.float8_e4m3fn)
    factor = torch.tensor([0.37])
    is_divisor = "global" in factor_name
    wide = scales.float() / factor if is_divisor else scales.float() * factor
    parts = {packed: nibbles, ".weight_scale": scales, factor_name: factor}
    parts[".input_scale"] = torch.ones(1)
    return Stored(parts, numbers * of_groups(wide, 16))


def test_nvfp4_of_modelopt(tmp_path: Path) -> None:
    check_loaded(publish(tmp_path, MODELOPT, lambda _, w: nv(".weight", ".weight_scale_2", w)))


def test_nvfp4_of_compressed_tensors(tmp_path: Path) -> None:
    """Its second scale divides."""
    check_state(
        publish(tmp_path, COMPRESSED, lambda _, w: nv(".weight_packed", ".weight_global_scale", w))
    )


def test_mxfp4_of_compressed_tensors(tmp_path: Path) -> None:
    def quantise(_: str, weight: Tensor) -> Stored:
        nibbles, numbers = nibbles_of(weight)
        exponents = random(weight, (len(weight), weight.shape[1] // 32), 20) + 110
        parts = {".weight_packed": nibbles, ".weight_scale": exponents.to(torch.uint8)}
        return Stored(parts, numbers * of_groups(torch.exp2(exponents - 127), 32))

    settings = {**COMPRESSED, "format": "mxfp4-pack-quantized"}
    check_state(publish(tmp_path, settings, quantise))
