"""Write the fixtures `gptq` and `awq`, where GPTQModel and AutoAWQ are installed
(`pip install gptqmodel autoawq`).

python write_words.py PLAIN FOLDER

PLAIN is what `plain_model.py` wrote; FOLDER is of all fixtures. Numbers are rounded to the nearest;
the libraries pack them and make them whole again.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.utils.packing_utils import dequantize_gemm
from gptqmodel import QuantizeConfig
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from reference import save_reference
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

GROUP_SIZE = 32
GPTQ_BITS = {"k_proj": 3, "up_proj": 2, "down_proj": 8}
AWQ_SETTINGS = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": GROUP_SIZE,
    "version": "gemm",
    "zero_point": True,
    "modules_to_not_convert": ["v_proj"],
}
Parts = dict[str, Tensor]


def of_groups(weight: Tensor, groups: Tensor, num_bits: int) -> tuple[Tensor, Tensor]:
    """Return scales and zero points [N, G] for the group of each column."""
    runs = [weight[:, groups == group] for group in range(int(groups.max()) + 1)]
    least = torch.stack([run.amin(1) for run in runs], 1)
    scales = (torch.stack([run.amax(1) for run in runs], 1) - least) / ((1 << num_bits) - 1)
    scales = scales.half().float()
    return scales, (-least / scales).round().clamp(1, (1 << num_bits) - 1)


def gptq(name: str, weight: Tensor) -> tuple[Parts, Tensor]:
    num_bits = GPTQ_BITS.get(name.rpartition(".")[2], 4)
    num_rows, num_columns = weight.shape
    groups = torch.arange(num_columns) // GROUP_SIZE
    if name.endswith("o_proj"):
        groups = groups[torch.randperm(num_columns, generator=torch.Generator().manual_seed(1))]
    scales, zeros = of_groups(weight, groups, num_bits)
    linear = nn.Linear(num_columns, num_rows, bias=False)
    linear.weight.data = weight
    module = TorchLinear(
        bits=num_bits,
        group_size=GROUP_SIZE,
        sym=False,
        desc_act=True,
        in_features=num_columns,
        out_features=num_rows,
        bias=False,
        register_buffers=True,
    )
    module.pack(linear, scales, zeros.int(), groups.int())
    packed = {part: module.get_buffer(part).clone() for part in ("qweight", "scales", "g_idx")}
    module.post_init()
    module.scales = module.scales.float()
    whole = module.dequantize_weight().T
    settings = QuantizeConfig(bits=num_bits, group_size=GROUP_SIZE, sym=False)
    convert_gptq_v2_to_v1_format_module(module, settings)
    return {**packed, "qzeros": module.qzeros}, whole


def awq(name: str, weight: Tensor) -> tuple[Parts, Tensor] | None:
    if name.endswith("v_proj"):
        return None
    groups = torch.arange(weight.shape[1]) // GROUP_SIZE
    scales, zeros = of_groups(weight, groups, 4)
    linear = nn.Linear(weight.shape[1], len(weight), bias=False)
    linear.weight.data = weight.half()
    module = WQLinear_GEMM.from_linear(linear, 4, GROUP_SIZE, scales=scales.T, zeros=zeros.T)
    parts = {part: module.get_buffer(part) for part in ("qweight", "qzeros", "scales")}
    words, zero_words, sizes = parts.values()
    return parts, dequantize_gemm(words, zero_words, sizes.float(), 4, GROUP_SIZE).T


def write(
    plain: Path,
    folder: Path,
    settings: dict[str, object],
    quantise: Callable[[str, Tensor], tuple[Parts, Tensor] | None],
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = load_file(plain / "model.safetensors")
    weights = {}
    for name in list(state):
        module = name.removesuffix(".weight")
        is_head = module == "lm_head" and settings.get("lm_head")
        made = quantise(module, state[name].float()) if "_proj" in name or is_head else None
        if made is not None:
            del state[name]
            parts, weights[name] = made
            state.update({f"{module}.{part}": each for part, each in parts.items()})
    whole = {name: each.contiguous() for name, each in state.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    shutil.copy(plain / "generation_config.json", folder)
    save_reference(plain, folder, weights)


@torch.inference_mode()
def main() -> None:
    plain, fixtures = Path(sys.argv[1]), Path(sys.argv[2])
    own = {f"+:.*{name}": {"bits": bits} for name, bits in GPTQ_BITS.items()}
    settings = QuantizeConfig(
        bits=4, group_size=GROUP_SIZE, sym=False, desc_act=True, lm_head=True, dynamic=own
    )
    write(plain, fixtures / "gptq", {**settings.to_dict(), "quant_method": "gptq"}, gptq)
    write(plain, fixtures / "awq", AWQ_SETTINGS, awq)


if __name__ == "__main__":
    main()
