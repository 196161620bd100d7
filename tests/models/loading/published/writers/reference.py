"""Writes what a library makes of the weights it quantised, and the tokens that a model of them
says."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

PROMPTS = [
    [5, 17, 33, 2, 90, 41, 8],
    [64, 3, 77, 12, 29, 50, 71],
    [9, 9, 81, 22, 6, 15, 38],
    [20, 73, 4, 55, 62, 1, 94],
]
NUM_KEPT = 2
NUM_NEW, LEAST_NEW = 12, 4
ROWS_APART = 4
"""Of each weight every fourth row is kept."""
LEAST_MARGIN = 0.002
"""By which each token leads: arithmetic in another order finds the same one."""


@torch.no_grad()
def save_reference(plain: Path, folder: Path, weights: dict[str, Tensor]) -> None:
    """Write `folder`/reference.safetensors. `plain` is the model that was quantised; `weights` are
    those of the library, whole."""
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    parameters = dict(model.named_parameters())
    for name, weight in weights.items():
        parameters[name].copy_(weight)
    kept = {name: weight[::ROWS_APART].contiguous() for name, weight in weights.items()}
    texts = {tuple(prompt): continued(model, prompt) for prompt in PROMPTS}
    prompts = sorted(texts, key=lambda prompt: -len(texts[prompt]))[:NUM_KEPT]
    num_new = len(texts[prompts[-1]])
    assert num_new >= LEAST_NEW, texts
    kept["prompts"] = torch.tensor(prompts)
    kept["tokens"] = torch.tensor([texts[prompt][:num_new] for prompt in prompts])
    save_file(kept, folder / "reference.safetensors")


def continued(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    text = list(prompt)
    for _ in range(NUM_NEW):
        best = model(torch.tensor([text])).logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < LEAST_MARGIN:
            break
        text.append(int(best.indices[0]))
    return text[len(prompt) :]
