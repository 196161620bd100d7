"""The paged model says what transformers says: every token in fp32, every logit to 1e-5."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from quire.models.config import KVOptions
from tests.models.driver import generate_greedy, load
from tests.models.families import SERVED, save_checkpoint
from tests.models.paging import Paging
from tests.models.reference import STORIES, greedy, ordinary, some_prompts

NUM_SEQS = 16
NUM_NEW = 16
MAX_LEN = 96
BLOCK_SIZE = 8


@pytest.fixture(scope="module", params=[*SERVED, "stories260K"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "stories260K":
        if not STORIES.is_dir():
            pytest.skip(f"the real weights are not at {STORIES}")
        return STORIES
    return save_checkpoint(SERVED[request.param], tmp_path_factory.mktemp("checkpoint"))


def all_logits(model: PreTrainedModel, prompt: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return logits


def test_greedy_tokens_are_those_of_generate(checkpoint: Path) -> None:
    prompts = some_prompts(NUM_SEQS, MAX_LEN - NUM_NEW)
    loaded = load(checkpoint)
    num_groups = len(loaded.facts.layout(KVOptions()).groups)
    paging = Paging(NUM_SEQS, MAX_LEN, block_size=BLOCK_SIZE, seed=5, num_groups=num_groups)
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE)
    texts = generate_greedy(model, paging, prompts, num_new=NUM_NEW, seed=11)
    reference = ordinary(checkpoint)
    assert texts == [greedy(reference, prompt, NUM_NEW) for prompt in prompts]


def paged_logits(checkpoint: Path, prompts: list[list[int]], dtype: str) -> list[Tensor]:
    """Every row's logits: the first half of each prompt in one step, the rest in a second."""
    loaded = load(checkpoint, dtype)
    num_groups = len(loaded.facts.layout(KVOptions()).groups)
    paging = Paging(len(prompts), MAX_LEN, block_size=BLOCK_SIZE, num_groups=num_groups)
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE)
    halves = [len(prompt) // 2 for prompt in prompts]
    steps = (
        [
            (i, 0, prompt[:half])
            for i, (prompt, half) in enumerate(zip(prompts, halves, strict=True))
        ],
        [
            (i, half, prompt[half:])
            for i, (prompt, half) in enumerate(zip(prompts, halves, strict=True))
        ],
    )
    rows: list[list[Tensor]] = [[] for _ in prompts]
    for chunks in steps:
        sizes = [len(tokens) for _, _, tokens in chunks]
        logits = model.forward(paging.batch(chunks, rows=range(sum(sizes))))
        for own, part in zip(rows, torch.split(logits, sizes), strict=True):
            own.append(part)
    return [torch.cat(own) for own in rows]


def test_logits_are_close_to_the_ordinary_forward(checkpoint: Path) -> None:
    prompts = some_prompts(5, 60)[1:]
    reference = ordinary(checkpoint)
    for prompt, logits in zip(prompts, paged_logits(checkpoint, prompts, "float32"), strict=True):
        expected = all_logits(reference, prompt)
        atol = 1e-5 * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(logits, expected, atol=atol, rtol=1e-5)


def test_bfloat16_is_no_worse_than_the_ordinary_bfloat16(checkpoint: Path) -> None:
    prompts = some_prompts(5, 60)[1:]
    exact, rounded = ordinary(checkpoint), ordinary(checkpoint, torch.bfloat16)
    ours = torch.cat(paged_logits(checkpoint, prompts, "bfloat16"))
    truth = torch.cat([all_logits(exact, prompt) for prompt in prompts])
    theirs = torch.cat([all_logits(rounded, prompt) for prompt in prompts])
    assert ours.dtype == torch.bfloat16
    assert (ours - truth).square().mean() <= 1.5 * (theirs - truth).square().mean()
