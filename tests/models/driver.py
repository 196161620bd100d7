"""Drives a model as a scheduler might, only more wildly: random chunks, random company."""

import os
import random

import torch

from quire.models.batch import Model
from quire.models.config import ModelDtype
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.loader import load_model
from tests.models.paging import Paging

DEVICE = os.environ.get("FIDELITY_DEVICE", "cpu")
"""Where the fidelity tests run. On a GPU: FIDELITY_DEVICE=cuda TRITON_INTERPRET=0 pytest ..."""


def ignore_progress(phase: str, done: int, total: int) -> None:
    pass


def load(folder: object, dtype: str = "float32", device: str = "cpu") -> LoadedModel:
    return load_model(
        ModelSource(str(folder)),
        dtype=ModelDtype(dtype),
        device=torch.device(device),
        on_progress=ignore_progress,
    )


def generate_greedy(
    model: Model, paging: Paging, prompts: list[list[int]], *, num_new: int, seed: int
) -> list[list[int]]:
    """Continue every prompt by `num_new` tokens; each step takes a random part of the requests."""
    rng = random.Random(seed)
    texts = [list(prompt) for prompt in prompts]
    ends = [len(prompt) + num_new for prompt in prompts]
    done = [0] * len(texts)
    while unfinished := [i for i, text in enumerate(texts) if len(text) < ends[i]]:
        picked = rng.sample(unfinished, rng.randint(1, len(unfinished)))
        upto = {i: rng.randint(done[i] + 1, len(texts[i])) for i in picked}
        chunks = [(i, done[i], texts[i][done[i] : upto[i]]) for i in picked]
        sampled = [i for i in picked if upto[i] == len(texts[i])]
        last = dict(zip(picked, torch.tensor([len(c[2]) for c in chunks]).cumsum(0), strict=True))
        logits = model.forward(paging.batch(chunks, rows=[int(last[i]) - 1 for i in sampled]))
        for i in picked:
            done[i] = upto[i]
        for i, token in zip(sampled, logits.argmax(-1).tolist(), strict=True):
            texts[i].append(token)
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
