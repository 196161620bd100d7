"""A greedy head computes the same largest logits, and is used in greedy-only steps alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.models.attention.scratch import StepLimits
from quire.models.config import KVOptions
from quire.models.layers.greedy_head import GreedyHead, candidate_tensors
from quire.models.layers.linears import PackedForward
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.loaded_model import LoadedModel
from quire.models.native.linear.compressed_bf16 import CompressedBf16Kernel
from tests.models.checkpoints import save_checkpoint
from tests.models.families import DENSE, Family
from tests.models.layers.test_linears import WHOLE_PANELS, load_packed
from tests.models.paging import Paging

PROMPTS = [[5, 9, 2, 7, 30, 11, 4], [1000, 3], [77]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("greedy_head")


def checkpoint(folder: Path, *, vocab_size: int, is_tied: bool) -> Path:
    path = folder / f"{vocab_size}-{is_tied}"
    more = {"vocab_size": vocab_size, "tie_word_embeddings": is_tied}
    family = Family("qwen2", fields={**DENSE, **WHOLE_PANELS, **more})
    return path if path.exists() else save_checkpoint(family, path, torch.bfloat16)


def logits(loaded: LoadedModel, *, greedy_only: bool) -> Tensor:
    paging = Paging(len(PROMPTS), 16, block_size=4)
    batch = paging.batch([(seq, 0, prompt) for seq, prompt in enumerate(PROMPTS)])
    model = loaded.attach(paging.num_blocks, 4)
    return model.forward(replace(batch, greedy_only=greedy_only))


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_largest_logits_are_those_of_the_whole_head(
    folder: Path, kernels: ModelKernels, is_tied: bool
) -> None:
    loaded = load_packed(checkpoint(folder, vocab_size=5000, is_tied=is_tied), kernels)
    whole = logits(loaded, greedy_only=False)
    some = logits(loaded, greedy_only=True)
    is_largest = whole == whole.amax(-1, keepdim=True)
    assert torch.equal(some[is_largest], whole[is_largest])
    assert (some == -torch.inf).float().mean() > 0.5
    assert torch.equal(logits(loaded, greedy_only=False), whole)


def test_int8_copy_counts_as_weights_and_its_products_as_scratch(
    folder: Path, kernels: ModelKernels
) -> None:
    path = checkpoint(folder, vocab_size=5000, is_tied=True)
    plain = load_packed(path, kernels._replace(candidates=None))
    greedy = load_packed(path, kernels)
    (int8,) = candidate_tensors(greedy.module)
    limits, options = StepLimits(64, 8, 64), KVOptions()
    assert greedy.scratch_bytes(limits, options) > plain.scratch_bytes(limits, options)
    assert greedy.weight_bytes - plain.weight_bytes >= int8.nbytes >= 5000 * 128
    assert torch.equal(logits(plain, greedy_only=True), logits(greedy, greedy_only=False))


def test_head_of_few_tokens_has_no_greedy_head(folder: Path, kernels: ModelKernels) -> None:
    loaded = load_packed(checkpoint(folder, vocab_size=32, is_tied=False), kernels)
    assert candidate_tensors(loaded.module) == []


def test_float32_model_has_no_greedy_head(folder: Path, kernels: ModelKernels) -> None:
    path = checkpoint(folder, vocab_size=5000, is_tied=True)
    loaded = load_packed(path, kernels, "float32")
    assert candidate_tensors(loaded.module) == []
    some, whole = (logits(loaded, greedy_only=each) for each in (True, False))
    assert torch.equal(some, whole)


def test_head_that_says_the_same_of_all_tokens_is_computed_whole(
    kernels: ModelKernels, kernel: CompressedBf16Kernel
) -> None:
    assert kernels.candidates is not None
    weight = kernel.pack(torch.ones(3000, 64, dtype=torch.bfloat16))
    forms = kernels.candidates.pack(weight)
    assert forms is not None
    head = GreedyHead(kernels.candidates, forms, PackedForward(kernel, weight, None))
    states = torch.randn(1, 3, 64, dtype=torch.bfloat16)
    for _ in range(40):  # more than the pause
        assert torch.equal(head(states), head.head(states))
