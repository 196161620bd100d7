"""Write the fixtures `auto-round` and `auto-round-awq`, where AutoRound is installed
(`pip install auto-round`).

python write_auto_round.py PLAIN FOLDER TOKENIZER

PLAIN is what `plain_model.py` wrote; FOLDER is of all fixtures. Numbers are rounded to the nearest,
so nothing is calibrated; the library wants a tokenizer all the same.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from auto_round import AutoRound
from auto_round.export.export_to_awq.utils import dequantize_gemm
from auto_round_extension.torch.qlinear_torch import QuantLinear
from reference import save_reference
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

PARTS = ("qweight", "qzeros", "scales")
GROUP_SIZE = 32
OWN_BITS = {"k_proj": 3, "o_proj": 2, "gate_proj": 5, "up_proj": 6, "down_proj": 8}
KEPT = {"model.layers.1.mlp.up_proj": {"bits": 16}}
FORMATS = {"auto-round": "auto_round", "auto-round-awq": "auto_round:auto_awq"}


def quantise(plain: Path, folder: Path, kind: str, tokenizer: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    own = dict(KEPT)
    for name, _ in model.named_modules():
        bits = OWN_BITS.get(name.rpartition(".")[2])
        if bits and "awq" not in kind and name not in KEPT:
            own[name] = {"bits": bits}
    quantiser = AutoRound(
        model,
        AutoTokenizer.from_pretrained(tokenizer),
        bits=4,
        group_size=GROUP_SIZE,
        sym=False,
        iters=0,
        disable_opt_rtn=True,
        layer_config=own,
    )
    made = folder.with_suffix(".made")
    quantiser.quantize_and_save(str(made), format=kind)
    folder.mkdir(parents=True, exist_ok=True)
    (config,) = made.rglob("config.json")
    shutil.copy(config, folder)
    (weights,) = config.parent.glob("*.safetensors")
    shutil.copy(weights, folder / "model.safetensors")
    shutil.rmtree(made)


def whole(parts: dict[str, Tensor], is_awq: bool) -> Tensor:
    """Return a weight as the library makes it whole, in float32."""
    words, zeros, scales = parts["qweight"], parts["qzeros"], parts["scales"].float()
    if is_awq:
        return dequantize_gemm(words, zeros, scales, 4, GROUP_SIZE).T
    num_rows = scales.shape[1]
    bits = zeros.shape[1] * 32 // num_rows
    layer = QuantLinear(bits, GROUP_SIZE, len(words) * 32 // bits, num_rows, bias=False)
    layer.qweight, layer.qzeros, layer.scales = words, zeros, scales
    return layer(torch.eye(layer.infeatures)).T


def main() -> None:
    plain, fixtures, tokenizer = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    for name, kind in FORMATS.items():
        folder = fixtures / name
        quantise(plain, folder, kind, tokenizer)
        stored = load_file(folder / "model.safetensors")
        weights = {}
        for each in stored:
            module, _, part = each.rpartition(".")
            if part == "qweight":
                parts = {
                    each: stored[f"{module}.{each}"] for each in ("qweight", "qzeros", "scales")
                }
                weights[f"{module}.weight"] = whole(parts, "awq" in kind).contiguous()
        config = json.loads((folder / "config.json").read_text())
        assert config["quantization_config"]["packing_format"] == kind
        save_reference(plain, folder, weights)


if __name__ == "__main__":
    main()
