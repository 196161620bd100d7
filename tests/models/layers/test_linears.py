"""Models over packed weights say what they said; no weight is there twice; it can be undone."""

import ctypes
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from quire.models.config import KVOptions, ModelDtype
from quire.models.layers.linears import pack_linears
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.loader import load_model
from quire.models.native.linear.bf16_storage import bind_bf16_storage
from quire.models.native.linear.compressed_bf16 import CompressedBf16Kernel
from tests.instructions import built_library, library_of
from tests.long import long_but_for
from tests.models.checkpoints import save_checkpoint
from tests.models.driver import ignore_progress, load
from tests.models.families import DENSE, SERVED, Family
from tests.models.logits_error import assert_same_logits
from tests.models.paging import Paging
from tests.models.reference import References

NAMES = ("llama", "qwen2", "gpt2", "gemma2", "granite_swa", "deepseek_v3", "minicpm3", "mixtral")
PROMPT = [5, 9, 2, 7, 30, 11, 4]
WHOLE_PANELS = {"vocab_size": 128, "hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
"""Nothing is padded."""


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = {**DENSE, **WHOLE_PANELS, "tie_word_embeddings": True}
    folder = tmp_path_factory.mktemp("tied")
    return save_checkpoint(Family("qwen2", fields=fields), folder, torch.bfloat16)


def load_packed(folder: Path, kernels: ModelKernels, dtype: str = "bfloat16") -> LoadedModel:
    return load_model(
        ModelSource(str(folder)),
        dtype=ModelDtype(dtype),
        device=torch.device("cpu"),
        on_progress=ignore_progress,
        kernels=kernels,
    )


def logits(loaded: LoadedModel, rows: Sequence[int] = range(len(PROMPT))) -> Tensor:
    tables = loaded.facts.layout(KVOptions()).tables
    paging = Paging(1, 16, block_size=4, tables=tables)
    model = loaded.attach(paging.num_blocks, 4, num_states=paging.num_states)
    return model.forward(paging.batch([(0, 0, PROMPT)], rows=rows)).float()


def weights_of(loaded: LoadedModel) -> dict[str, Tensor]:
    return dict(loaded.module.named_parameters())


def packed_names(loaded: LoadedModel) -> set[str]:
    return {name for name, weight in weights_of(loaded).items() if weight.dim() == 4}


@pytest.mark.parametrize("name", NAMES)
def test_packed_model_is_no_worse_than_the_plain_one(
    name: str, references: References, kernel: CompressedBf16Kernel
) -> None:
    checkpoint = references.checkpoint(name)
    packed = load_packed(checkpoint, ModelKernels((kernel,)))
    truth = logits(load(checkpoint, "float32"))
    plain = logits(load(checkpoint, "bfloat16"))
    assert packed_names(packed)
    assert (logits(packed) - truth).square().mean() <= 1.2 * (plain - truth).square().mean()


def test_every_linear_weight_is_there_once_and_packed(
    tied: Path, kernel: CompressedBf16Kernel
) -> None:
    packed, plain = load_packed(tied, ModelKernels((kernel,))), load(tied, "bfloat16")
    assert packed.weight_bytes < 0.9 * plain.weight_bytes
    matrices = {name for name, weight in weights_of(plain).items() if weight.dim() == 2}
    assert packed_names(packed) == matrices


def test_head_and_embedding_go_on_sharing_one_weight(
    tied: Path, kernel: CompressedBf16Kernel
) -> None:
    module = load_packed(tied, ModelKernels((kernel,))).module
    head, embedding = (module.get_submodule(name) for name in ("lm_head", "model.embed_tokens"))
    assert head.get_parameter("weight") is embedding.get_parameter("weight")


def test_latent_attention_keeps_its_views(
    references: References, kernel: CompressedBf16Kernel
) -> None:
    names = packed_names(load_packed(references.checkpoint("deepseek_v3"), ModelKernels((kernel,))))
    assert names and not any("kv_b_proj" in name for name in names)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_checkpoint_does_not_stay_mapped(
    dtype: str, tied: Path, kernel: CompressedBf16Kernel
) -> None:
    """Its pages would count as memory of the process, beside the packed weights."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc/self/maps")
    kernels = halves("portable") if dtype == "float32" else ModelKernels((kernel,))
    loaded = load_packed(tied, kernels, dtype)
    assert str(tied) not in maps.read_text()
    assert loaded.weight_bytes > 0


def test_other_dtypes_are_left_alone(tied: Path, kernel: CompressedBf16Kernel) -> None:
    assert packed_names(load_packed(tied, ModelKernels((kernel,)), "float32")) == set()


@long_but_for(["gpt2", "qwen2", "deepseek_v3", "mixtral"], "name", NAMES)
def test_float32_over_the_halves_of_a_bfloat16_checkpoint_says_the_same(
    name: str, tmp_path: Path
) -> None:
    folder = save_checkpoint(SERVED[name], tmp_path, torch.bfloat16)
    plain = logits(load(folder, "float32"))
    for isa in built_library().isas:
        bf16_storage = load_packed(folder, halves(isa), "float32")
        assert packed_names(bf16_storage)
        assert_same_logits(logits(bf16_storage), plain, folder, len(PROMPT))


def test_halves_take_half_of_the_memory(tied: Path) -> None:
    bf16_storage, plain = load_packed(tied, halves("portable"), "float32"), load(tied, "float32")
    assert weights_of(bf16_storage)["model.embed_tokens.weight"].dim() == 4
    left = sum(weight.nbytes for weight in weights_of(bf16_storage).values() if weight.dim() != 4)
    assert bf16_storage.weight_bytes - left <= 0.51 * (plain.weight_bytes - left)


def test_float32_weights_that_are_no_bfloat16_numbers_stay_as_they_are(tmp_path: Path) -> None:
    folder = save_checkpoint(Family("qwen2", fields=DENSE), tmp_path, torch.float32)
    assert packed_names(load_packed(folder, halves("portable"), "float32")) == set()


def halves(isa: str) -> ModelKernels:
    return ModelKernels((bind_bf16_storage(library_of(isa)),))


def test_undone_the_model_is_as_it_was(tied: Path, kernel: CompressedBf16Kernel) -> None:
    loaded = load(tied, "bfloat16")
    before, said = {k: v.clone() for k, v in weights_of(loaded).items()}, logits(loaded)
    pack_linears(loaded.module, (kernel,)).undo()
    after = weights_of(loaded)
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert torch.equal(logits(loaded), said)


@pytest.mark.parametrize(
    ("name", "used"),
    [("longcat_flash", "router.classifier"), ("gemma4, text alone", "embed_tokens")],
)
def test_weight_that_the_model_computes_with_is_left_alone(
    name: str, used: str, references: References, kernel: CompressedBf16Kernel
) -> None:
    loaded = load_packed(references.checkpoint(name), ModelKernels((kernel,)))
    names = packed_names(loaded)
    assert any(used in each for each in weights_of(loaded))
    assert names and not any(used in each for each in names)


def test_model_that_fails_over_packed_weights_is_unpacked_again(
    tied: Path, kernel: CompressedBf16Kernel
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no product")

    loaded = load_packed(tied, ModelKernels((dataclasses.replace(kernel, multiply=fail),)))
    assert packed_names(loaded) == set()
    assert torch.equal(logits(loaded), logits(load(tied, "bfloat16")))


def test_model_that_says_something_else_over_packed_weights_is_unpacked_again(
    tied: Path, kernel: CompressedBf16Kernel
) -> None:
    def zero(*arguments: int) -> None:
        _x, m, _packed, _bias, n, _k, y, _threads = arguments
        ctypes.memset(y, 0, 2 * m * n)

    loaded = load_packed(tied, ModelKernels((dataclasses.replace(kernel, multiply=zero),)))
    assert packed_names(loaded) == set()


class ShiftedEmbedding(nn.Embedding):
    """Adds to what it looks up, as families that scale do."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + 1


def test_embedding_goes_on_doing_what_its_kind_does(kernel: CompressedBf16Kernel) -> None:
    embedding, head = ShiftedEmbedding(40, 24, padding_idx=39), nn.Linear(24, 40, bias=False)
    model = nn.ModuleDict({"embedding": embedding, "head": head})
    nn.Module.to(model, torch.bfloat16)
    nn.Module.requires_grad_(model, False)
    head.weight = embedding.weight
    ids = torch.tensor([[3, 39, 3], [0, 1, 38]])
    expected = embedding(ids)
    pack_linears(model, (kernel,))
    assert embedding.weight.dim() == 4
    assert torch.equal(embedding(ids), expected)
