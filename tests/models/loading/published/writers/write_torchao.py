"""Write the fixture `torchao`, where torchao is installed
(`pip install torchao transformers accelerate`).

python write_torchao.py PLAIN FOLDER

PLAIN is what `plain_model.py` wrote. The matrices of a layer are of several kinds. The library
makes its plain tensors of 4 bits on a GPU alone: their numbers are made here, by its formula.
"""

import sys
from pathlib import Path

import torch
from reference import save_reference
from torch import Tensor, nn
from torchao.quantization import (
    Float8WeightOnlyConfig,
    FqnToConfig,
    Int4Tensor,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    PerRow,
    PerTensor,
)
from transformers import AutoModelForCausalLM, TorchAoConfig

KINDS = FqnToConfig(
    {
        r"re:.*\.q_proj": Int8WeightOnlyConfig(granularity=PerRow()),
        r"re:.*\.k_proj": Float8WeightOnlyConfig(),
        r"re:.*\.v_proj": Int8WeightOnlyConfig(granularity=PerGroup(32)),
        r"re:.*\.gate_proj": IntxWeightOnlyConfig(
            weight_dtype=torch.int4, granularity=PerGroup(32)
        ),
        r"re:.*\.up_proj": Int8WeightOnlyConfig(granularity=PerTensor()),
        r"re:.*\.down_proj": IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)),
    }
)
PACKED = "o_proj"
GROUP_SIZE = 32


def packed(weight: Tensor) -> tuple[Int4Tensor, Tensor]:
    """Return a weight [N, K] in 4 bits, and its numbers in float32."""
    groups = weight.float().view(len(weight), -1, GROUP_SIZE)
    least = groups.amin(-1, keepdim=True)
    scale = ((groups.amax(-1, keepdim=True) - least) / 15).to(weight.dtype).float()
    zero = (least + 8 * scale).to(weight.dtype).float()
    numbers = ((groups - zero) / scale).round().clamp(-8, 7)
    nibbles = numbers.to(torch.int8).view(len(weight), -1)
    qdata = (nibbles[:, 1::2] << 4 | nibbles[:, ::2] & 15).view(torch.uint8)
    turned = [each[..., 0].T.contiguous().to(weight.dtype) for each in (scale, zero)]
    made = Int4Tensor(qdata, *turned, [1, GROUP_SIZE], weight.shape)
    return made, (numbers * scale + zero).view(weight.shape)


def whole(weight: Tensor) -> Tensor | None:
    """Return a weight as the library makes it whole, in float32."""
    if not hasattr(weight, "qdata"):
        return None
    if type(weight).__name__ != "IntxUnpackedToInt8Tensor":
        return weight.dequantize(torch.float32)
    return weight.to(torch.float32).dequantize()


def main() -> None:
    plain, folder = Path(sys.argv[1]), Path(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=TorchAoConfig(KINDS), dtype=torch.bfloat16, device_map="cpu"
    )
    found = {name: whole(weight.data) for name, weight in model.named_parameters()}
    weights = {name: weight for name, weight in found.items() if weight is not None}
    for name, module in model.named_modules():
        if name.endswith(PACKED):
            made, weights[f"{name}.weight"] = packed(module.weight.data)
            module.weight = nn.Parameter(made, requires_grad=False)
    model.save_pretrained(folder)
    save_reference(plain, folder, weights)


if __name__ == "__main__":
    main()
