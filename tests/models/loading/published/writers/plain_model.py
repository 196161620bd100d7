"""Write the tiny Llama that the fixtures are quantised from, in bfloat16.

python plain_model.py FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

STD = 0.3
"""Numbers are large enough for every choice to matter."""


def main() -> None:
    torch.manual_seed(46)
    config = LlamaConfig(
        **dict.fromkeys(("hidden_size", "intermediate_size"), 64),
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=96,
        max_position_embeddings=128,
        initializer_range=STD,
        bos_token_id=0,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
