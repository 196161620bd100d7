"""Writes a GGUF file as a folder of bfloat16 safetensors with its configuration and tokenizer.

    python -m tests.real.gguf_folder MODEL.gguf FOLDER

transformers reads the file; its weights are dequantised to float32, then rounded to bfloat16.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import gguf
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


@contextmanager
def read_once() -> Iterator[None]:
    """Let transformers read a GGUF file once: it does so for each part, which takes seconds."""
    with (
        patch("gguf.GGUFReader", cache(gguf.GGUFReader)),
        patch("gguf.get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        yield


@read_once()
def write_folder(file: Path, folder: Path) -> None:
    """Write configuration, weights in bfloat16 and tokenizer of a GGUF file to `folder`."""
    where = {"gguf_file": file.name}
    config = AutoConfig.from_pretrained(file.parent, **where)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    config.dtype = torch.bfloat16
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    read = load_gguf_checkpoint(  # type: ignore[no-untyped-call]
        file, return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16
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
