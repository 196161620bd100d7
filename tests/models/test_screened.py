"""A model whose head is screened says the same largest logits, and says it only where asked."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.models.attention.scratch import StepLimits
from quire.models.config import KVOptions
from quire.models.layers.linears import PackedForward
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.screened import ScreenedHead, screen_tensors
from quire.models.loading.loader import LoadedModel
from quire.models.native.linear.linear import LinearKernel
from tests.models.checkpoints import save_checkpoint
from tests.models.families import DENSE, Family
from tests.models.paging import Paging
from tests.models.test_linears import WHOLE_PANELS, load_packed

PROMPTS = [[5, 9, 2, 7, 30, 11, 4], [1000, 3], [77]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("screened")


def checkpoint(folder: Path, *, vocab_size: int, is_tied: bool) -> Path:
    path = folder / f"{vocab_size}-{is_tied}"
    more = {"vocab_size": vocab_size, "tie_word_embeddings": is_tied}
    family = Family("qwen2", fields={**DENSE, **WHOLE_PANELS, **more})
    return path if path.exists() else save_checkpoint(family, path, torch.bfloat16)


def logits(loaded: LoadedModel, *, only_largest: bool) -> Tensor:
    paging = Paging(len(PROMPTS), 16, block_size=4)
    batch = paging.batch([(seq, 0, prompt) for seq, prompt in enumerate(PROMPTS)])
    model = loaded.attach(paging.num_blocks, 4)
    return model.forward(replace(batch, only_largest=only_largest))


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_largest_logits_are_those_of_the_whole_head(
    folder: Path, kernels: ModelKernels, is_tied: bool
) -> None:
    loaded = load_packed(checkpoint(folder, vocab_size=5000, is_tied=is_tied), kernels)
    whole = logits(loaded, only_largest=False)
    some = logits(loaded, only_largest=True)
    is_largest = whole == whole.amax(-1, keepdim=True)
    assert torch.equal(some[is_largest], whole[is_largest])
    assert (some == -torch.inf).float().mean() > 0.5
    assert torch.equal(logits(loaded, only_largest=False), whole)


def test_screen_counts_as_weights_and_what_it_takes_as_scratch(
    folder: Path, kernels: ModelKernels
) -> None:
    path = checkpoint(folder, vocab_size=5000, is_tied=True)
    plain = load_packed(path, kernels._replace(screen=None))
    screened = load_packed(path, kernels)
    (screen,) = screen_tensors(screened.module)
    limits, options = StepLimits(64, 8, 64), KVOptions()
    assert screened.scratch_bytes(limits, options) > plain.scratch_bytes(limits, options)
    assert screened.weight_bytes - plain.weight_bytes >= screen.nbytes >= 5000 * 128
    assert torch.equal(logits(plain, only_largest=True), logits(screened, only_largest=False))


def test_head_of_few_tokens_is_not_screened(folder: Path, kernels: ModelKernels) -> None:
    loaded = load_packed(checkpoint(folder, vocab_size=32, is_tied=False), kernels)
    assert screen_tensors(loaded.module) == []


def test_head_of_a_float32_model_is_not_screened(folder: Path, kernels: ModelKernels) -> None:
    path = checkpoint(folder, vocab_size=5000, is_tied=True)
    loaded = load_packed(path, kernels, "float32")
    assert screen_tensors(loaded.module) == []
    some, whole = (logits(loaded, only_largest=each) for each in (True, False))
    assert torch.equal(some, whole)


def test_head_that_says_the_same_of_all_tokens_is_computed_whole(
    kernels: ModelKernels, kernel: LinearKernel
) -> None:
    assert kernels.screen is not None
    weight = kernel.pack(torch.ones(3000, 64, dtype=torch.bfloat16))
    screen = kernels.screen.pack(weight)
    assert screen is not None
    head = ScreenedHead(kernels.screen, screen, PackedForward(kernel, weight, None))
    states = torch.randn(1, 3, 64, dtype=torch.bfloat16)
    for _ in range(40):  # more than it rests
        assert torch.equal(head(states), head.head(states))
