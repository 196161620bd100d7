"""Write the fixtures `bitsandbytes-*`, where bitsandbytes is installed
(`pip install bitsandbytes transformers accelerate`).

python write_bitsandbytes.py PLAIN FOLDER

PLAIN is what `plain_model.py` wrote; FOLDER is of all fixtures.
"""

import sys
from pathlib import Path

import torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from reference import save_reference
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

KINDS = {
    "nf4": BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    ),
    "fp4": BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_quant_storage=torch.bfloat16
    ),
    "int8": BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["o_proj", "lm_head"]),
}


def whole(module: nn.Module) -> Tensor | None:
    """Return a weight as the library makes it whole, in float32."""
    if isinstance(module, Linear4bit):
        state = module.weight.quant_state
        state.dtype = torch.float32
        return dequantize_4bit(module.weight.data.view(torch.uint8), state)
    if isinstance(module, Linear8bitLt):
        return int8_vectorwise_dequant(module.weight.data, module.weight.SCB)
    return None


def main() -> None:
    plain, fixtures = Path(sys.argv[1]), Path(sys.argv[2])
    for name, config in KINDS.items():
        folder = fixtures / f"bitsandbytes-{name}"
        model = AutoModelForCausalLM.from_pretrained(
            plain, quantization_config=config, dtype=torch.bfloat16, device_map="cpu"
        )
        model.save_pretrained(folder)
        modules = {path: whole(module) for path, module in model.named_modules()}
        weights = {f"{path}.weight": each for path, each in modules.items() if each is not None}
        save_reference(plain, folder, weights)


if __name__ == "__main__":
    main()
