"""The paged model says what transformers says: in fp32 every token, and but for rounding every
logit. Tokens, and the families that stand for no others, are compared by `make long`."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from quire.models.config import KVOptions
from quire.models.loading.loaded_model import LoadedModel
from tests.long import rest_is_long
from tests.models.checkpoints import attention_of
from tests.models.driver import DEVICE, generate_greedy, load
from tests.models.families import SERVED
from tests.models.fidelity_table import ROWS, Row, Rows
from tests.models.logits_error import logits_error, logits_spread
from tests.models.paging import Paging
from tests.models.reference import (
    BLOCK_SIZE,
    MAX_LEN,
    NUM_NEW,
    NUM_SEQS,
    PROVEN,
    References,
    fidelity_prompts,
    ordinary,
    some_prompts,
)
from tests.models.representatives import FAMILIES

IN_HALF_PRECISION = (
    *("llama", "gpt2", "stories260K", "gemma2", "granite_swa", "deepseek_v3", "minicpm3"),
    *("qwen3_5_text", "lfm2", "bamba", "falcon_mamba"),
)
"""One for each way of attention and kind of states. No experts: rounding would choose others."""


@pytest.fixture(scope="module", params=rest_is_long(FAMILIES, PROVEN))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(family: str, references: References) -> Path:
    return references.checkpoint(family)


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> LoadedModel:
    return load(checkpoint, "float32", DEVICE)


@pytest.fixture
def row(family: str, request: pytest.FixtureRequest) -> Row:
    rows: Rows = request.config.stash.setdefault(ROWS, {})
    return rows.setdefault(family, Row(family))


def all_logits(model: PreTrainedModel, prompt: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return logits


@pytest.mark.long  # engines say what `generate` says in every run, tests/engine/test_fidelity.py
def test_greedy_tokens_are_those_of_generate(
    family: str, loaded: LoadedModel, references: References, row: Row
) -> None:
    tables = loaded.facts.layout(KVOptions()).tables
    paging = Paging(NUM_SEQS, MAX_LEN, block_size=BLOCK_SIZE, seed=5, tables=tables)
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE, num_states=paging.num_states)
    texts = generate_greedy(model, paging.on(DEVICE), fidelity_prompts(), num_new=NUM_NEW, seed=11)
    expected = references.greedy_texts(family)
    row.num_tokens = sum(map(len, expected))
    row.is_exact = texts == expected
    assert texts == expected


def paged_logits(loaded: LoadedModel, prompts: list[list[int]]) -> list[Tensor]:
    """Every row's logits: the first half of each prompt in one step, the rest in a second."""
    tables = loaded.facts.layout(KVOptions()).tables
    paging = Paging(len(prompts), MAX_LEN, block_size=BLOCK_SIZE, tables=tables)
    paging = paging.on(DEVICE)
    model = loaded.attach(paging.num_blocks, BLOCK_SIZE, num_states=paging.num_states)
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
        logits = model.forward(paging.batch(chunks, rows=range(sum(sizes)))).cpu()
        for own, part in zip(rows, torch.split(logits, sizes), strict=True):
            own.append(part)
    return [torch.cat(own) for own in rows]


def test_logits_are_close_to_the_ordinary_forward(
    checkpoint: Path, loaded: LoadedModel, row: Row
) -> None:
    prompts = some_prompts(5, 60)[1:]
    row.describe(loaded.facts, len(loaded.facts.layout(KVOptions()).groups))
    reference = ordinary(checkpoint)
    errors, spreads = [], []
    for prompt, logits in zip(prompts, paged_logits(loaded, prompts), strict=True):
        expected = all_logits(reference, prompt)
        largest = max(1.0, float(expected.abs().max()))
        errors.append(float((logits - expected).abs().max()) / largest)
        if loaded.facts.recurrent:
            compute = partial(all_logits, reference, prompt)
            spreads.append(logits_spread(reference, compute, checkpoint, len(prompt)))
    row.error = max(errors)
    assert row.error <= 2 * max(logits_error(checkpoint, max(map(len, prompts))), *spreads, 0.0)


def test_layers_attend_as_the_page_says(family: str, loaded: LoadedModel) -> None:
    if family in SERVED:
        assert attention_of(loaded.facts) == SERVED[family].attention


@pytest.mark.parametrize("name", IN_HALF_PRECISION)
def test_bfloat16_is_no_worse_than_the_ordinary_bfloat16(name: str, references: References) -> None:
    checkpoint = references.checkpoint(name)
    prompts = some_prompts(5, 60)[1:]
    exact, rounded = ordinary(checkpoint), ordinary(checkpoint, torch.bfloat16)
    loaded = load(checkpoint, "bfloat16", DEVICE)
    ours = torch.cat(paged_logits(loaded, prompts))
    truth = torch.cat([all_logits(exact, prompt) for prompt in prompts])
    theirs = torch.cat([all_logits(rounded, prompt) for prompt in prompts])
    assert loaded.facts.dtype == "bfloat16"
    assert (ours - truth).square().mean() <= 1.5 * (theirs - truth).square().mean()
