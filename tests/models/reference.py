"""What transformers itself says: the ordinary model, its greedy tokens, and prompts to ask with."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED

STORIES = Path(__file__).parents[3] / "shared/models/stories260K"
PROVEN = (*SERVED, "stories260K")

NUM_SEQS = 16
NUM_NEW = 16
MAX_LEN = 96
BLOCK_SIZE = 8


def ordinary(checkpoint: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=dtype, attn_implementation="eager"
    )
    return model


def some_prompts(num: int, longest: int) -> list[list[int]]:
    rng = random.Random(7)
    lengths = [1, 2, longest, *(rng.randint(3, longest) for _ in range(num - 3))]
    return [[rng.randrange(3, 100) for _ in range(length)] for length in lengths]


def fidelity_prompts() -> list[list[int]]:
    """Two of them share a prefix."""
    longest = MAX_LEN - NUM_NEW
    prompts = some_prompts(NUM_SEQS, longest)
    prompts[5] = (prompts[4][:20] + prompts[5])[:longest]
    return prompts


def greedy(model: PreTrainedModel, prompt: list[int], num_new: int) -> list[int]:
    """`generate` without an end token."""
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=num_new, do_sample=False, pad_token_id=0
    )
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids))  # type: ignore[operator]
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


@dataclass(frozen=True, slots=True)
class References:
    """Checkpoints by name, and what `generate` says to `fidelity_prompts`: each made once."""

    folder: Path
    texts: dict[str, list[list[int]]] = field(default_factory=dict)

    def checkpoint(self, name: str) -> Path:
        if name == "stories260K":
            if not STORIES.is_dir():
                pytest.skip("shared/models/stories260K is not there")
            return STORIES
        checkpoint = self.folder / name
        if not checkpoint.exists():
            save_checkpoint(SERVED[name], checkpoint)
        return checkpoint

    def greedy_texts(self, name: str) -> list[list[int]]:
        if name not in self.texts:
            model = ordinary(self.checkpoint(name))
            self.texts[name] = [greedy(model, prompt, NUM_NEW) for prompt in fidelity_prompts()]
        return self.texts[name]
