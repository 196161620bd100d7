"""What transformers itself says: the ordinary model, its greedy tokens, and prompts to ask with."""

import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

STORIES = Path(__file__).parents[3] / "shared/models/stories260K"


def ordinary(checkpoint: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=dtype, attn_implementation="eager"
    )
    return model


def some_prompts(num: int, longest: int) -> list[list[int]]:
    rng = random.Random(7)
    lengths = [1, 2, longest, *(rng.randint(3, longest) for _ in range(num - 3))]
    return [[rng.randrange(3, 100) for _ in range(length)] for length in lengths]


def greedy(model: PreTrainedModel, prompt: list[int], num_new: int) -> list[int]:
    """`generate` without an end token."""
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=num_new, do_sample=False, pad_token_id=0
    )
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids))  # type: ignore[operator]
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens
