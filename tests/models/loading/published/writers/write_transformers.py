"""Write the fixtures `fp8` and `mxfp4` (gpt-oss), where transformers is installed
(`pip install torch transformers accelerate`).

python write_transformers.py PLAIN FOLDER

PLAIN is what `plain_model.py` wrote; the fixtures are two folders in FOLDER. transformers makes
MXFP4 on a GPU alone: its bytes are random here.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from reference import save_reference
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    FineGrainedFP8Config,
    GptOssConfig,
    Mxfp4Config,
)
from transformers.integrations.finegrained_fp8 import Fp8Quantize
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

BLOCK = 16
FILE = "model.safetensors"


def write_fp8(plain: Path, folder: Path) -> None:
    """Write blocks of 16 rows and columns."""
    AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16).save_pretrained(folder)
    config = FineGrainedFP8Config(weight_block_size=(BLOCK, BLOCK))
    quantise = Fp8Quantize(FineGrainedFP8HfQuantizer(config))
    state = load_file(folder / FILE)
    for name in [name for name in state if name.endswith("_proj.weight")]:
        state.update(quantise.convert({name: state.pop(name)}))
    save_file(state, folder / FILE, metadata={"format": "pt"})
    _tell(folder, config.to_dict())
    config.dequantize = True
    save_reference(plain, folder, _matrices(_dequantised(folder, config)))


def write_mxfp4(folder: Path) -> None:
    """Write random nibbles, and exponents that make numbers of about 0.3."""
    torch.manual_seed(46)
    config = GptOssConfig(
        architectures=["GptOssForCausalLM"],
        **dict.fromkeys(("hidden_size", "intermediate_size"), 32),
        **dict.fromkeys(("num_hidden_layers", "num_experts_per_tok", "num_key_value_heads"), 2),
        **dict.fromkeys(("num_local_experts", "num_attention_heads"), 4),
        head_dim=16,
        vocab_size=96,
        max_position_embeddings=128,
        sliding_window=8,
        initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    state = load_file(folder / FILE)
    for name in [name for name in state if name.endswith(("gate_up_proj", "experts.down_proj"))]:
        num_experts, num_columns, num_rows = state.pop(name).shape
        shape = (num_experts, num_rows, num_columns // 32, 16)
        state[f"{name}_blocks"] = torch.randint(0, 256, shape, dtype=torch.uint8)
        state[f"{name}_scales"] = torch.randint(122, 126, shape[:-1], dtype=torch.uint8)
    save_file(state, folder / FILE, metadata={"format": "pt"})
    _tell(folder, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    whole = _dequantised(folder, Mxfp4Config(dequantize=True))
    with TemporaryDirectory() as plain:
        model.load_state_dict(whole.state_dict())
        model.float().save_pretrained(plain)
        save_reference(Path(plain), folder, _matrices(whole))


def _tell(folder: Path, settings: dict[str, object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    told = {**config, "quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(told, indent=2) + "\n")


def _dequantised(folder: Path, config: object) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=config
    )


def _matrices(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the matrices of the layers."""
    parameters = model.named_parameters()
    return {name: each.data for name, each in parameters if ".layers." in name and each.dim() > 1}


if __name__ == "__main__":
    write_fp8(Path(sys.argv[1]), Path(sys.argv[2]) / "fp8")
    write_mxfp4(Path(sys.argv[2]) / "mxfp4")
