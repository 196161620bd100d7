"""Write the fixtures `compressed-tensors` and `compressed-tensors-packed`, where LLM Compressor is
installed (`pip install llmcompressor`).

python write_compressed_tensors.py PLAIN FOLDER

PLAIN is what `plain_model.py` wrote; the fixtures are two folders in FOLDER. The matrices of a
layer of the first are of several kinds.
"""

import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from reference import save_reference
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

KINDS = {
    "q_proj": "INT8",
    "k_proj": "FP8_BLOCK",
    "v_proj": "FP8_DYNAMIC",
    "o_proj": "W4A16_ASYM",
    "gate_proj": "NVFP4A16",
    "up_proj": "NVFP4A16",
    "down_proj": "MXFP4A16",
}
PACKED = {"self_attn.*": "W8A16", "mlp.*": "W4A16"}
GROUP_SIZE = 32


def scheme_of(kind: str, target: str) -> QuantizationScheme:
    scheme = preset_name_to_scheme(kind, [target])
    if scheme.weights.group_size == 128:
        scheme.weights.group_size = GROUP_SIZE
    return scheme


def write(plain: Path, folder: Path, kinds: dict[str, str]) -> None:
    """Quantise the model, layers of these names in these kinds, and store it."""
    groups = {f"of {name}": scheme_of(kind, f"re:.*{name}$") for name, kind in kinds.items()}
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    oneshot(model=model, recipe=QuantizationModifier(config_groups=groups, ignore=["lm_head"]))
    model.save_pretrained(folder, save_compressed=True)
    modules = {name: each for name, each in model.named_modules() if ".layers." in name}
    weights = {
        f"{name}.weight": whole(module)
        for name, module in modules.items()
        if isinstance(module, nn.Linear)
    }
    save_reference(plain, folder, weights)


def whole(module: nn.Module) -> Tensor:
    """Return a weight as the library makes it of its parts, in float32."""
    state, scheme = dict(module.state_dict()), module.quantization_scheme
    packed = state.get("weight_packed")
    if packed is None or packed.dtype != torch.uint8:
        state["weight_scale"] = state["weight_scale"].float()
        return BaseCompressor.get_value_from_registry(scheme.format).decompress(state, scheme)[
            "weight"
        ]
    scale = state["weight_scale"]
    if scale.dtype == torch.uint8:
        scale = torch.exp2(scale.float() - 127)
    return dequantize(
        x_q=unpack_fp4_from_uint8(packed, len(packed), packed.shape[1] * 2).float(),
        scale=scale.float(),
        args=scheme.weights,
        global_scale=state.get("weight_global_scale"),
        dtype=torch.float32,
    )


if __name__ == "__main__":
    plain, folder = Path(sys.argv[1]), Path(sys.argv[2])
    write(plain, folder / "compressed-tensors", KINDS)
    write(plain, folder / "compressed-tensors-packed", PACKED)
