"""Models over int8 weights say about what they said, in fewer bytes; what cannot be is refused."""

import ctypes
import dataclasses
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from quire.models.config import FailedCheck, UnsupportedModel
from quire.models.layers.linears import pack_linears
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.checks.quantised import log_quantised
from quire.models.loading.loaded_model import LoadedModel
from quire.models.native.library import ISAS
from quire.models.native.linear.quantised.w8a8 import W8A8Kernel
from quire.models.native.linear.quantised.w8a32 import bind_w8a32
from tests.instructions import library_of
from tests.long import long_but_for
from tests.models.checkpoints import save_checkpoint
from tests.models.driver import load
from tests.models.families import DENSE, Family
from tests.models.layers.test_linears import WHOLE_PANELS, load_packed, logits, packed_names
from tests.models.reference import References

NAMES = ("llama", "qwen2", "gpt2", "gemma2", "deepseek_v3", "mixtral")
DTYPES = ("bfloat16", "float32")
SPREAD = 0.2
"""Of the logits: mixtral's routers, over random weights, choose another expert for one token."""


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = {**DENSE, **WHOLE_PANELS, "tie_word_embeddings": True}
    folder = tmp_path_factory.mktemp("tied")
    return save_checkpoint(Family("qwen2", fields=fields), folder, torch.bfloat16)


def load_int8(folder: Path, kernel: W8A8Kernel, dtype: str = "bfloat16") -> LoadedModel:
    return load_packed(folder, ModelKernels((kernel,)), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_quantised_model_says_about_the_same(
    name: str, dtype: str, references: References, w8a8_kernel: W8A8Kernel
) -> None:
    checkpoint = references.checkpoint(name)
    quantised = load_int8(checkpoint, w8a8_kernel, dtype)
    truth = logits(load(checkpoint, "float32"))
    assert packed_names(quantised)
    assert (logits(quantised) - truth).square().mean().sqrt() <= SPREAD * truth.std()


@pytest.mark.parametrize("isa", ISAS)
@long_but_for(["llama", "gpt2", "mixtral"], "name", NAMES)
def test_model_over_widened_bytes_says_about_the_same(
    name: str, isa: str, references: References
) -> None:
    kernel = bind_w8a32(library_of(isa))
    checkpoint = references.checkpoint(name)
    quantised = load_packed(checkpoint, ModelKernels((kernel,)), "float32")
    truth = logits(load(checkpoint, "float32"))
    assert packed_names(quantised)
    assert (logits(quantised) - truth).square().mean().sqrt() <= SPREAD * truth.std()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_weight_of_a_linear_layer_takes_a_byte_a_number(
    tied: Path, dtype: str, w8a8_kernel: W8A8Kernel
) -> None:
    quantised, plain = load_int8(tied, w8a8_kernel, dtype), load(tied, dtype)
    matrices = [weight for weight in plain.module.parameters() if weight.dim() == 2]
    plain_bytes = sum(weight.nbytes for weight in matrices)
    packed_bytes = sum(weight.numel() + 4 * len(weight) for weight in matrices)
    assert plain.weight_bytes - quantised.weight_bytes == plain_bytes - packed_bytes
    assert quantised.facts == plain.facts


def test_the_checkpoint_does_not_stay_mapped(tied: Path, w8a8_kernel: W8A8Kernel) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc/self/maps")
    loaded = load_int8(tied, w8a8_kernel)
    assert str(tied) not in maps.read_text()
    assert loaded.weight_bytes > 0


def test_head_and_embedding_go_on_sharing_one_weight(tied: Path, w8a8_kernel: W8A8Kernel) -> None:
    module = load_int8(tied, w8a8_kernel).module
    head, embedding = (module.get_submodule(name) for name in ("lm_head", "model.embed_tokens"))
    assert head.get_parameter("weight") is embedding.get_parameter("weight")


def test_what_stays_is_told_with_its_share(
    references: References, w8a8_kernel: W8A8Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quire.models.loading.checks.quantised")
    load_int8(references.checkpoint("mixtral"), w8a8_kernel)
    assert "quantised" in caplog.text and " %)" in caplog.text
    assert "experts" in caplog.text


def test_model_that_has_nothing_to_quantise_is_refused(tied: Path, w8a8_kernel: W8A8Kernel) -> None:
    with pytest.raises(UnsupportedModel, match="none of their weights"):
        load_int8(tied, w8a8_kernel, "float16")


def test_a_module_without_linear_layers_has_nothing_to_quantise(w8a8_kernel: W8A8Kernel) -> None:
    module = nn.Sequential(nn.Embedding(4, 4))
    with pytest.raises(UnsupportedModel, match="none of their weights"):
        log_quantised(module, pack_linears(module, (w8a8_kernel,)), "little")


def test_model_that_fails_over_quantised_weights_is_refused(
    tied: Path, w8a8_kernel: W8A8Kernel
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no product")

    with pytest.raises(UnsupportedModel, match="no product"):
        load_int8(tied, dataclasses.replace(w8a8_kernel, multiply=fail))


@pytest.mark.parametrize("byte", [0, 0x3F])
def test_model_that_says_something_else_is_refused(
    tied: Path, byte: int, w8a8_kernel: W8A8Kernel
) -> None:
    def fill(_x: int, _is: bool, m: int, *rest: int) -> None:
        _packed, _outliers, _bias, n, _k, y, _scratch, _threads = rest
        ctypes.memset(y, byte, 2 * m * n)

    with pytest.raises(FailedCheck, match=r"products over .* Leave out --quantization"):
        load_int8(tied, dataclasses.replace(w8a8_kernel, multiply=fill))
