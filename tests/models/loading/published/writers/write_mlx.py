"""Write the fixture `mlx`, where MLX is installed (`pip install mlx[cpu] mlx-lm`).

python write_mlx.py PLAIN FOLDER

PLAIN is what `plain_model.py` wrote. Each matrix of a layer has settings of its own, one for each
kind of number; embeddings and head have those of all.
"""

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, quantize_model, save_model

PROMPTS = [[5, 17, 33, 2, 90, 41, 8], [64, 3, 77, 12, 29, 50, 71]]
NUM_NEW = 12
ROWS_APART = 4
"""Of each weight every fourth row is kept."""
LEAST_MARGIN = 0.002
"""By which the likeliest token leads: arithmetic in another order finds the same one."""
OWN: dict[str, dict[str, Any]] = {
    "q_proj": {"bits": 3, "group_size": 32},
    "k_proj": {"bits": 5, "group_size": 64},
    "v_proj": {"bits": 6, "group_size": 32},
    "o_proj": {"bits": 8, "group_size": 64},
    "gate_proj": {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    "up_proj": {"bits": 8, "group_size": 32, "mode": "mxfp8"},
    "down_proj": {"bits": 4, "group_size": 16, "mode": "nvfp4"},
}


def settings_of(path: str, module: nn.Module) -> bool | dict[str, Any]:
    return dict(OWN[path.rpartition(".")[2]]) if ".layers." in path else True


def whole_weights(model: nn.Module) -> dict[str, mx.array]:
    """Return each weight as the library makes it whole, in float32."""
    found = {}
    for path, module in tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module):
        if "scales" not in module:
            continue
        is_affine = module.mode == "affine"
        extra = (module.biases.astype(mx.float32),) if is_affine else ()
        scales = module.scales.astype(mx.float32) if is_affine else module.scales
        kind = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
        found[f"{path}.weight"] = mx.dequantize(module.weight, scales, *extra, **kind)
    return {name: weight.astype(mx.float32) for name, weight in found.items()}


def continued(model: nn.Module, prompt: list[int]) -> list[int]:
    text = list(prompt)
    for _ in range(NUM_NEW):
        logits = model(mx.array([text]))[0, -1].astype(mx.float32)
        best = mx.sort(logits)[-2:].tolist()
        assert best[1] - best[0] > LEAST_MARGIN, best
        text.append(int(mx.argmax(logits)))
    return text[len(prompt) :]


def main() -> None:
    plain, folder = Path(sys.argv[1]), Path(sys.argv[2])
    model, config = load_model(plain)
    model, config = quantize_model(model, config, 64, 4, quant_predicate=settings_of)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, model)
    config["quantization_config"] = config["quantization"]
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    weights = whole_weights(model)
    model, _ = load_model(plain)
    model.set_dtype(mx.float32)
    model.load_weights(list(weights.items()), strict=False)
    kept = {name: weight[::ROWS_APART] for name, weight in weights.items()}
    kept["tokens"] = mx.array([continued(model, prompt) for prompt in PROMPTS])
    mx.save_safetensors(
        str(folder / "reference.safetensors"), {**kept, "prompts": mx.array(PROMPTS)}
    )
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
