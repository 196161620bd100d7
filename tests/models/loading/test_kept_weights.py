"""A load over kept packed weights is the load that packed them, and reads no matrix again."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.models.config import ModelDtype, Quantization
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.formats.weight_format import KernelOptions
from quire.models.loading.kernels import choose_kernels, compute_dtype
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.loader import load_model
from tests.instructions import built_library
from tests.models.checkpoints import save_checkpoint
from tests.models.driver import ignore_progress
from tests.models.families import SERVED
from tests.models.layers.test_linears import logits, packed_names
from tests.models.loading.gguf.test_packed import save_model
from tests.models.loading.gguf.writer import write_model

CPU = torch.device("cpu")
WIDE = {
    **{"hidden_size": 256, "intermediate_size": 288, "num_attention_heads": 4, "head_dim": 64},
    **{"num_key_value_heads": 2, "vocab_size": 160, "num_hidden_layers": 2},
}
"""Sizes of weights that have outliers."""


def load(model: Path, file: Path | None, quantization: Quantization) -> LoadedModel:
    built_library()
    options = KernelOptions(quantization, dtype=ModelDtype.FLOAT32)
    kernels = choose_kernels(options, CPU)
    return load_model(
        ModelSource(str(model), packed_file=file),
        dtype=compute_dtype(options, kernels),
        device=CPU,
        on_progress=ignore_progress,
        kernels=kernels,
    )


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = SERVED["llama"]
    fields = {**family.fields, **WIDE}
    return save_checkpoint(
        family._replace(fields=fields), tmp_path_factory.mktemp("wide"), torch.bfloat16
    )


def without_matrices(model: Path, folder: Path) -> Path:
    """A copy whose matrices are all zero."""
    shutil.copytree(model, folder)
    (file,) = folder.glob("*.safetensors")
    weights = {
        name: torch.zeros_like(weight) if weight.dim() == 2 else weight
        for name, weight in load_file(file).items()
    }
    save_file(weights, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("quantization", Quantization)
@pytest.mark.parametrize("is_tied", [False, True])
def test_kept_weights_are_used_in_place_of_the_checkpoints(
    quantization: Quantization, is_tied: bool, wide: Path, tmp_path: Path
) -> None:
    """To the bit; heads and embeddings that no kernel packs are the checkpoint's."""
    model = wide
    if is_tied:
        family = SERVED["llama"]
        fields = {**family.fields, **WIDE, "tie_word_embeddings": True}
        model = save_checkpoint(family._replace(fields=fields), tmp_path / "tied", torch.bfloat16)
    file = tmp_path / "kept.safetensors"
    first = load(model, file, quantization)
    zeros = without_matrices(model, tmp_path / "zeros")
    if not is_tied:  # embeddings that are a head's too are packed
        (weights,) = zeros.glob("*.safetensors")
        name = "model.embed_tokens.weight"
        (whole,) = model.glob("*.safetensors")
        save_file({**load_file(weights), name: load_file(whole)[name]}, weights, {"format": "pt"})
    second = load(zeros, file, quantization)
    assert packed_names(second) == packed_names(first) != set()
    assert torch.equal(logits(second), logits(first))
    assert second.weight_bytes == first.weight_bytes
    assert [path.name for path in tmp_path.glob("*.safetensors")] == [file.name]


def test_groups_of_a_gguf_file_are_kept(tmp_path: Path) -> None:
    """Values in another type than queries are joined with them, in either load."""
    file = tmp_path / "model.gguf"
    kinds = gguf.GGMLQuantizationType
    kind = {"attn_v": kinds.Q8_0, "": kinds.Q4_0}
    write_model(save_model(tmp_path / "whole", is_tied=True), file, "llama", kind=kind)
    kept = tmp_path / "kept.safetensors"
    first = load(file, kept, Quantization.NONE)
    before = kept.read_bytes()
    assert torch.equal(logits(load(file, kept, Quantization.NONE)), logits(first))
    assert kept.read_bytes() == before


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def other_kind(file: Path) -> None:
    save_file({"a": torch.zeros(3)}, file)


@pytest.mark.parametrize("damage", [flip, cut, empty, other_kind])
def test_a_damaged_file_is_told_and_made_anew(
    damage: Callable[[Path], None], wide: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "kept.safetensors"
    expected = logits(load(wide, file, Quantization.INT8))
    whole = file.read_bytes()
    damage(file)
    with caplog.at_level(logging.WARNING, "quire"):
        assert torch.equal(logits(load(wide, file, Quantization.INT8)), expected)
    assert f"packed weights in {file} are made anew" in caplog.text
    assert file.read_bytes() == whole


def test_another_models_file_is_not_used(
    wide: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "kept.safetensors"
    load(save_model(tmp_path / "other", is_tied=False), file, Quantization.INT8)
    expected = logits(load(wide, None, Quantization.INT8))
    with caplog.at_level(logging.WARNING, "quire"):
        assert torch.equal(logits(load(wide, file, Quantization.INT8)), expected)
    assert "are made anew" in caplog.text


def test_a_file_that_cannot_be_written_is_told(
    wide: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "gone" / "kept.safetensors"
    with caplog.at_level(logging.WARNING, "quire"):
        load(wide, file, Quantization.INT8)
    assert f"packed weights cannot be kept in {file}" in caplog.text


def test_what_a_kill_left_half_written_is_removed(wide: Path, tmp_path: Path) -> None:
    """But for files that another start may be writing, and those of other models."""
    names = (".kept.aa.tmp", ".kept.bb.tmp", ".other.aa.tmp")
    old, young, other = (tmp_path / name for name in names)
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, 0))
    load(wide, tmp_path / "kept.safetensors", Quantization.INT8)
    assert not old.exists()
    assert young.exists() and other.exists()
