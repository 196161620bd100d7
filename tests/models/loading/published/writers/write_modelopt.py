"""Write the fixtures `modelopt-fp8` and `modelopt-nvfp4`, where ModelOpt is installed
(`pip install nvidia-modelopt transformers requests`).

python write_modelopt.py PLAIN FOLDER

PLAIN is what `plain_model.py` wrote; the fixtures are two folders in FOLDER.
"""

import sys
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from reference import PROMPTS, save_reference
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

NIBBLES = torch.uint8


def write(plain: Path, folder: Path, settings: dict[str, object]) -> None:
    """Quantise the model by the settings, calibrated on the prompts, and store it."""
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    mtq.quantize(model, settings, lambda each: each(torch.tensor(PROMPTS)))
    export_hf_checkpoint(model, export_dir=folder)
    state = load_file(folder / "model.safetensors")
    quantised = [name for name in state if f"{name}_scale" in state]
    weights = {name: _dequantised(state, name) for name in quantised}
    save_reference(plain, folder, weights)


def _dequantised(state: dict[str, Tensor], name: str) -> Tensor:
    """Return a weight as the library makes it of its parts, in float32."""
    weight, scale = state[name], state[f"{name}_scale"]
    if weight.dtype == NIBBLES:
        shape = torch.Size((len(weight), weight.shape[1] * 2))
        factor = state[f"{name}_scale_2"]
        made = NVFP4QTensor(shape, torch.float32, weight)
        return made.dequantize(scale=scale, double_scale=factor, block_sizes={-1: 16})
    return FP8QTensor(weight.shape, torch.float32, weight).dequantize(scale=scale)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]) / "modelopt-fp8", mtq.FP8_DEFAULT_CFG)
    write(Path(sys.argv[1]), Path(sys.argv[2]) / "modelopt-nvfp4", mtq.NVFP4_DEFAULT_CFG)
