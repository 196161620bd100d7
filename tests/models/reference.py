"""What transformers itself says: the ordinary model, its greedy tokens, and prompts to ask with."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from tests.models.checkpoints import model_class, save_checkpoint
from tests.models.families import SERVED

STORIES = Path(__file__).parents[3] / "shared/models/stories260K"
PROVEN = (*SERVED, "stories260K")

NUM_SEQS = 16
NUM_NEW = 16
MAX_LEN = 96
BLOCK_SIZE = 8


def ordinary(checkpoint: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    kind = model_class(AutoConfig.from_pretrained(checkpoint))
    model: PreTrainedModel = kind.from_pretrained(
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


def made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """Return `path`, which `make` writes if it is not there. Where processes that share its folder
    make it at the same time, one of them is kept, and none is ever seen in part."""
    if not path.exists():
        with TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            make(made)
            try:
                made.rename(path)
            except OSError:  # a folder does not replace one that has come meanwhile
                if not path.exists():
                    raise
    return path


@dataclass(frozen=True, slots=True)
class References:
    """Checkpoints by name, and what `generate` says to `fidelity_prompts`: each made once, by
    whichever of the processes that share the folder is first to want it."""

    folder: Path

    def checkpoint(self, name: str) -> Path:
        if name == "stories260K":
            if not STORIES.is_dir():
                pytest.skip("shared/models/stories260K is not there")
            return STORIES

        def save(folder: Path) -> None:
            with torch.random.fork_rng(devices=[]):  # a test draws the same, whoever made it
                save_checkpoint(SERVED[name], folder)

        return made_once(self.folder / name, save)

    def greedy_texts(self, name: str) -> list[list[int]]:
        def save(file: Path) -> None:
            model = ordinary(self.checkpoint(name))
            texts = [greedy(model, prompt, NUM_NEW) for prompt in fidelity_prompts()]
            file.write_text(json.dumps(texts))

        texts: list[list[int]] = json.loads(
            made_once(self.folder / f"{name}.json", save).read_text()
        )
        return texts
