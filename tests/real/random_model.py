"""Writes a small random model with a real tokenizer."""

import json
import shutil
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from quire.server.text.tokenizer import load_tokenizer


def write_random_model(tokenizer: Path, into: Path, *, max_len: int) -> int:
    """Write a model of one layer for the tokenizer in a folder, with its chat template if it has
    one, and return the id of the token that ends outputs. The weights are always the same."""
    text = load_tokenizer(str(tokenizer), None)
    name = json.loads((tokenizer / "tokenizer_config.json").read_text())["eos_token"]
    end_id = text.added_tokens[name if isinstance(name, str) else name["content"]]
    for each in tokenizer.glob("tokenizer*.json"):
        shutil.copy(each, into)
    config = LlamaConfig(
        vocab_size=text.num_tokens,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=max_len,
        eos_token_id=end_id,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(into)
    return end_id
