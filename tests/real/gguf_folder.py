"""Writes a GGUF file as a folder of bfloat16 safetensors with its configuration and tokenizer.

    python -m tests.real.gguf_folder MODEL.gguf FOLDER

transformers reads the file; its weights are dequantised to float32, then rounded to bfloat16.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def write_folder(gguf: Path, folder: Path) -> None:
    """Write configuration, weights in bfloat16 and tokenizer of a GGUF file to `folder`."""
    where = {"gguf_file": gguf.name}
    config = AutoConfig.from_pretrained(gguf.parent, **where)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    config.dtype = torch.bfloat16
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    read = load_gguf_checkpoint(  # type: ignore[no-untyped-call]
        gguf, return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16
    )
    missing = {name for name, _ in model.named_parameters()} - read["tensors"].keys()
    if missing:
        raise ValueError(f"the file lacks weights: {sorted(missing)}")
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_file(read["tensors"], folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]), Path(sys.argv[2]))
