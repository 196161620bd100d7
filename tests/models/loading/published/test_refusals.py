"""Settings that are not read, and parts that do not fit, are named before weights are read."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, ones, zeros

from quire.models.config import CheckpointError
from quire.models.loading.weight_files import read_headers
from tests.models.families import Family
from tests.models.loading.published import test_float4 as float4
from tests.models.loading.published import test_float8 as float8
from tests.models.loading.published import test_integers as integers
from tests.models.loading.published.test_blocks import (
    BITSANDBYTES,
    QDATA,
    SCALE,
    STATE,
    TORCHAO,
    ZERO_POINT,
    four_bits,
    in_blocks,
)
from tests.models.loading.published.test_mlx import affine
from tests.models.loading.published.test_words import GPTQ, gptq
from tests.models.loading.published.written import WIDE, Stored, publish


class Format(NamedTuple):
    """Settings of a format, and the parts that it stores of a layer."""

    settings: Mapping[str, object]
    quantise: Callable[[str, Tensor], Stored]
    family: Family = WIDE
    field: str = "quantization_config"

    def publish(
        self,
        folder: Path,
        settings: Mapping[str, object],
        parts: Mapping[str, Tensor | None],
    ) -> Path:
        """Write a checkpoint with these settings and parts in place of its own; without the parts
        that are None."""

        def quantise(name: str, weight: Tensor) -> Stored:
            stored = self.quantise(name, weight)
            if stored.parts.keys() == {".weight"}:
                return stored  # a layer that is not quantised
            found = {**stored.parts, **parts}
            return Stored({end: part for end, part in found.items() if part is not None}, weight)

        told = {**self.settings, **settings}
        return publish(folder, told, quantise, self.family, field=self.field).folder


FORMATS = {
    "blocks": Format(BITSANDBYTES, lambda _, weight: four_bits(weight)),
    "int8": Format(
        BITSANDBYTES, lambda _, weight: Stored({".weight": weight.char(), ".SCB": ones(64)}, weight)
    ),
    "torchao": Format(TORCHAO, lambda _, weight: in_blocks(weight, (len(weight), 1), 0)),
    "modelopt": Format(
        float4.MODELOPT, lambda _, weight: float4.nv(".weight", ".weight_scale_2", weight)
    ),
    "mxfp4": Format({"quant_method": "mxfp4"}, float4.experts, float4.GPT_OSS),
    "fp8": Format(float8.BLOCKS, float8.blocks),
    "compressed": Format(integers.settings(4), lambda _, weight: integers.packed(weight, 4)),
    "mlx": Format(
        {"group_size": 32, "bits": 4}, lambda _, weight: affine(weight, 4), field="quantization"
    ),
    "gptq": Format(GPTQ, lambda _, weight: gptq(weight)),
}
SETTINGS: list[tuple[str, Mapping[str, object], str]] = [
    ("fp8", {"weight_block_size": [128]}, r"whose weight_block_size is \[128\], must be two whole"),
    ("fp8", {"weight_block_size": [0, 1]}, r"weight_block_size is \[0, 1\], must be two whole"),
    ("fp8", {"expert_dtype": "fp4"}, "whose expert_dtype is 'fp4', of which Quire reads 'fp8'"),
    ("compressed", {"format": "marlin-24"}, "whose format is 'marlin-24', of which Quire reads"),
    ("compressed", {"format": "sparse-24-bitmask"}, "whose format is 'sparse-24-bitmask'"),
    (
        "compressed",
        {"sparsity_config": {"format": "sparse-bitmask"}},
        "whose sparsity_config.format is",
    ),
    ("compressed", {"transform_config": {"config_groups": {"R1": {}}}}, "with a transform_config"),
    (
        "compressed",
        {"config_groups": {"W4A16": ["Linear"]}},
        "whose config_groups.W4A16 is no object",
    ),
    ("compressed", integers.settings(3), "whose num_bits is 3, of which Quire reads 2 or 4 or 8"),
    ("mlx", {"bits": 7}, "whose bits is 7"),
    ("mlx", {"group_size": 48}, "whose group_size is 48, of which Quire reads 32 or 64 or 128"),
    ("mlx", {"mode": "nf4"}, "whose mode is 'nf4'"),
    ("mlx", {"mode": "mxfp8"}, "whose mxfp8 has bits 4 and group_size 32, must have 8 and 32"),
    ("mlx", {"lm_head": {"bits": "4"}}, "whose bits is '4', must be a whole number"),
    ("mlx", {"group_size": 64}, r"its scales is \[64, 2\], must be \[64, 1\]"),
    ("gptq", {"bits": 5}, "whose bits is 5, of which Quire reads 2 or 3 or 4 or 8"),
    ("gptq", {"bits": "4"}, "whose bits is .4., of which Quire reads"),
    ("gptq", {"checkpoint_format": "marlin"}, "whose checkpoint_format is 'marlin'"),
]
PARTS: list[tuple[str, Mapping[str, Tensor | None], str]] = [
    ("int8", {".SCB": ones(3)}, r"its SCB is \[3\], must be \[64\]"),
    ("int8", {".weight_format": torch.tensor(2)}, "its weight_format is 2, must be 0"),
    ("torchao", {QDATA: ones(64, 64)}, "its qdata is of F32, must be of U8 or I8"),
    ("torchao", {SCALE: ones(64, 3)}, r"its scale is \[64, 3\], must be blocks of"),
    ("torchao", {ZERO_POINT: ones(64).char()}, r"zero_point is \[64\], must be \[64, 1\]"),
    ("torchao", {"._weight_act_pre_scale": ones(1)}, "act_pre_scale is one part too many"),
    ("torchao", {"._weight_scale_and_zero": ones(1)}, "scale_and_zero is one part too"),
    ("modelopt", {".weight_scale_2": None}, "its weight_scale_2 is missing"),
    ("modelopt", {".weight_scale_2": ones(3)}, r"its weight_scale_2 is \[3\], must be one number"),
    ("modelopt", {".weight_scale": ones(64, 4)}, "weight_scale is of F32, must be of F8_E4M3"),
    ("modelopt", {".weight": ones(64, 20).byte()}, "must be rows of whole groups of 16"),
    ("modelopt", {".pre_quant_scale": ones(64)}, "its columns have a pre_quant_scale"),
    ("mxfp4", {"_scales": None}, "its scales is missing"),
    ("mxfp4", {"_scales": ones(4, 3, 2).byte()}, r"its scales is \[4, 3, 2\], must be"),
    ("mxfp4", {"_blocks": ones(4, 128, 2, 8).byte()}, "must be of 16 bytes each"),
    (
        "fp8",
        {".weight_scale_inv": ones(3, 3)},
        r"is \[3, 3\], for \[64, 64\], in blocks of \[48",
    ),
    ("fp8", {".weight_scale_inv": ones(2, 3).int()}, "weight_scale is of I32, must be of F32"),
    ("fp8", {".weight": ones(64, 64)}, "its weight is of F32, must be of F8_E4M3"),
    ("fp8", {".weight": None}, "its weight is missing"),
    ("compressed", {".weight_scale": None}, "its weight_scale is missing"),
    ("compressed", {".weight_scale": ones(64, 3)}, "its 64 columns are not 3 groups"),
    ("compressed", {".weight_scale": ones(60, 2)}, r"scale is \[60, 2\], must be \[64, 2\]"),
    ("compressed", {".weight_zero_point": ones(9, 2).int()}, r"is \[9, 2\], must be \[8, 2\]"),
    ("compressed", {".weight_g_idx": ones(3).int()}, r"its weight_g_idx is \[3\], must be \[64\]"),
    ("compressed", {".weight_packed": ones(64, 8)}, "weight_packed is of F32, must be of I32"),
    ("compressed", {".weight_packed": None}, "its weight is missing"),
    (
        "compressed",
        {".weight_packed": None, ".weight": ones(64, 64).bfloat16()},
        "its weight is of BF16, must be of I8",
    ),
    ("mlx", {".global_scale": ones(1)}, "its global_scale is one part too many"),
    ("mlx", {".weight": zeros(64, 8)}, "its weight is of F32, must be of U32"),
    ("mlx", {".weight": zeros(8).view(torch.uint32)}, r"its weight is \[8\], must be a matrix"),
    ("mlx", {".biases": zeros(64, 3)}, r"its biases is \[64, 3\], must be \[64, 2\]"),
    ("gptq", {".scales": None}, "its scales is missing"),
    ("gptq", {".scales": zeros(2, 60).half()}, r"its scales is \[2, 60\], must be \[2, 64\]"),
    ("gptq", {".qzeros": zeros(2, 64)}, "its qzeros is of F32, must be of I32"),
    ("gptq", {".qzeros": zeros(2, 9).int()}, "its qzeros are no whole bits each"),
    ("gptq", {".g_idx": zeros(3).int()}, r"its g_idx is \[3\], must be \[64\]"),
    ("gptq", {".qweight": zeros(8).int()}, "must be matrices"),
]
STATES = [
    (b"{", "its quant_state cannot be read as JSON"),
    (b"[" * 4000, "its quant_state cannot be read as JSON"),
    (b"[]", "its quant_state must be a JSON object"),
    (b'{"shape": [64]}', r"its quant_state has the shape \[64\], must have two sizes"),
    (b'{"shape": [-64, -64]}', "must have two sizes"),
    (b'{"shape": [64, 64], "blocksize": 0}', "has blocksize 0, must have 1 to"),
    (b'{"shape": [64, 64], "blocksize": "64"}', "blocksize is '64', must be a whole number"),
    (b'{"shape": [64, 99], "blocksize": 48}', r"its absmax is \[86\], must be \[132\]"),
    (b'{"shape": [64, 63], "blocksize": 47}', "its weight is 2048 bytes, too few or many"),
    (b'{"shape": [8, 8], "blocksize": 64, "nested_offset": NaN}', "nested_offset nan"),
    (b" " * 4097, "of 4097 bytes, of which Quire reads at most 4096"),
]
"""Of bitsandbytes, which tells the form of a weight in a tensor of text."""


@pytest.mark.parametrize(("name", "settings", "told"), SETTINGS)
def test_settings_that_are_not_read_are_named(
    name: str, settings: Mapping[str, object], told: str, tmp_path: Path
) -> None:
    folder = FORMATS[name].publish(tmp_path, settings, {})
    with pytest.raises(CheckpointError, match=told):
        read_headers(folder)


@pytest.mark.parametrize(
    ("name", "parts", "told"),
    [
        *PARTS,
        *(
            ("blocks", {STATE: torch.frombuffer(bytearray(state), dtype=torch.uint8)}, told)
            for state, told in STATES
        ),
    ],
)
def test_parts_that_do_not_fit_are_named(
    name: str, parts: Mapping[str, Tensor | None], told: str, tmp_path: Path
) -> None:
    folder = FORMATS[name].publish(tmp_path, {}, parts)
    with pytest.raises(CheckpointError, match=told):
        read_headers(folder)
