"""FP8 as `fp8`, `fbgemm_fp8`, `modelopt` and `compressed-tensors` have it: floats of 8 bits with
scales of weights, rows and blocks."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.models.config import CheckpointError
from quire.models.loading.weight_files import read_headers
from tests.models.families import SERVED
from tests.models.loading.published.written import (
    Published,
    Quantise,
    Stored,
    check_loaded,
    check_state,
    publish,
    random,
)

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCKS = {**FP8, "weight_block_size": [48, 24]}
"""Neither divides the 64 rows and columns of a layer."""


def float8(weight: Tensor) -> Tensor:
    return (weight * 100).to(torch.float8_e4m3fn)


def scales_of(weight: Tensor, *shape: int) -> Tensor:
    return (random(weight, shape, 999) + 1).float() / 65536


def in_blocks(weight: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return a scale for each block, and for each number."""
    num_rows, num_columns = weight.shape
    scales = scales_of(weight, -(-num_rows // rows), -(-num_columns // columns))
    wide = scales[torch.arange(num_rows) // rows][:, torch.arange(num_columns) // columns]
    return scales, wide


def scaled(
    ending: str, shape_of: Callable[[Tensor], tuple[int, ...]], **further: Tensor
) -> Quantise:
    """Return what stores a scale of whole weights or rows, and further parts."""

    def quantise(_: str, weight: Tensor) -> Stored:
        shape = shape_of(weight)
        scales = scales_of(weight, *shape)
        parts = {".weight": float8(weight), ending: scales}
        parts |= {f".{name}": part for name, part in further.items()}
        rows = scales.view(-1, 1)
        return Stored(parts, float8(weight).float() * rows)

    return quantise


def blocks(_: str, weight: Tensor) -> Stored:
    scales, wide = in_blocks(weight, 48, 24)
    parts = {".weight": float8(weight), ".weight_scale_inv": scales}
    return Stored(parts, float8(weight).float() * wide)


def exponents(_: str, weight: Tensor) -> Stored:
    """Scales of 48 rows and 24 columns that are powers of two."""
    scales, wide = in_blocks(weight, 48, 24)
    powers = [torch.exp2(each.log2().round()) for each in (scales, wide)]
    stored = powers[0].to(torch.float8_e8m0fnu)
    parts = {".weight": float8(weight), ".weight_scale_inv": stored}
    return Stored(parts, float8(weight).float() * powers[1])


def whole(weight: Tensor) -> tuple[int, ...]:
    return ()


def rows(weight: Tensor) -> tuple[int, ...]:
    return len(weight), 1


ONE = torch.ones(())
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "block_structure": [48, 24]},
        }
    },
}


@pytest.mark.parametrize(
    ("settings", "quantise"),
    [
        (BLOCKS, exponents),
        (FP8, scaled(".weight_scale_inv", whole, activation_scale=ONE)),
        (FP8, scaled(".qscale_weight", whole, qscale_act=ONE)),
        ({"quant_method": "fbgemm_fp8"}, scaled(".weight_scale", rows, input_scale_ub=ONE)),
        (COMPRESSED, scaled(".weight_scale", lambda _: (1,), input_scale=ONE)),
        (COMPRESSED, scaled(".weight_scale", rows)),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, scaled(".weight_scale", whole)),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
            scaled(".weight_scale", lambda weight: (len(weight),)),
        ),
    ],
)
def test_weights_are_those_stored(
    settings: Mapping[str, object], quantise: Quantise, tmp_path: Path
) -> None:
    check_state(publish(tmp_path, settings, quantise))


def test_a_model_of_blocks(tmp_path: Path) -> None:
    check_loaded(publish(tmp_path, BLOCKS, blocks))


def test_the_text_of_an_image_checkpoint(tmp_path: Path) -> None:
    """As Mistral stores Ministral 3: a scale for each weight, and one for its activations."""
    quantise = scaled(".weight_scale_inv", whole, activation_scale=ONE)
    check_loaded(publish(tmp_path, FP8, quantise, SERVED["mistral3, text alone"]))


def test_blocks_of_others(tmp_path: Path) -> None:
    """compressed-tensors names scales otherwise, and ModelOpt gives them four dimensions."""

    def renamed(name: str, weight: Tensor) -> Stored:
        parts, values = blocks(name, weight)
        return Stored(
            {".weight": parts[".weight"], ".weight_scale": parts[".weight_scale_inv"]}, values
        )

    def of_four(_: str, weight: Tensor) -> Stored:
        scales, wide = in_blocks(weight, 32, 16)
        parts = {".weight": float8(weight), ".weight_scale": scales[:, None, :, None]}
        return Stored(parts, float8(weight).float() * wide)

    check_state(publish(tmp_path / "compressed", COMPRESSED, renamed))
    settings = {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}
    check_state(publish(tmp_path / "modelopt", settings, of_four))


def test_modelopt_tells_in_a_file_of_its_own(tmp_path: Path) -> None:
    published = _told_beside(tmp_path, {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"})
    check_state(published)
    with pytest.raises(CheckpointError, match="whose quant_algo is 'W4A16_AWQ', of which"):
        read_headers(_told_beside(tmp_path / "other", {"quant_algo": "W4A16_AWQ"}).folder)


def _told_beside(tmp_path: Path, settings: Mapping[str, object]) -> Published:
    published = publish(tmp_path, {}, scaled(".weight_scale", whole, k_scale=ONE))
    told = {"producer": {"name": "modelopt"}, "quantization": settings}
    (published.folder / "hf_quant_config.json").write_text(json.dumps(told))
    return published
