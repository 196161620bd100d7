"""Models of GGUF files whose matrices stay in the groups of the file: the same models, in the bytes
that were planned."""

from pathlib import Path

import gguf
import pytest
import torch
from torch import Tensor, nn

from quire.models.config import KVOptions, ModelDtype, Quantization
from quire.models.layers.decoder import DecoderForward
from quire.models.layers.linears import PackedForward, PackedLookup
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.formats.weight_format import KernelOptions
from quire.models.loading.kernels import choose_kernels
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.loader import load_model
from quire.models.loading.outline import Outline, OutlineOptions, outline, read_config
from quire.models.loading.preview import Preview, look_ahead
from quire.models.native.linear.quantised.grouped import GroupedKernel
from quire.models.optimizations import Disabled, Optimization
from quire.models.target import Target
from tests.instructions import built_library
from tests.models.checkpoints import save_checkpoint
from tests.models.driver import ignore_progress
from tests.models.families import SERVED
from tests.models.layers.test_linears import logits
from tests.models.loading.gguf.test_models import locate_file
from tests.models.loading.gguf.writer import write_model
from tests.models.logits_error import assert_same_logits

CPU = torch.device("cpu")
KIND = gguf.GGMLQuantizationType
SIZES = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "num_hidden_layers": 2},
}
MIXED = {"attn_v": KIND.Q8_0, "ffn_up": KIND.Q5_1, "token_embd": KIND.Q8_0}


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("tied"), is_tied=True)


def save_model(folder: Path, *, is_tied: bool) -> Path:
    family = SERVED["llama"]
    fields = {**family.fields, **SIZES, "tie_word_embeddings": is_tied}
    return save_checkpoint(family._replace(fields=fields), folder)


def kernels_for(
    disabled: Disabled = (), quantization: Quantization = Quantization.NONE
) -> ModelKernels:
    built_library()
    options = KernelOptions(quantization, dtype=ModelDtype.FLOAT32, disabled=disabled)
    found = choose_kernels(options, CPU)
    assert found is not None
    return found


def load(file: Path, kernels: ModelKernels | None) -> LoadedModel:
    source = ModelSource(str(file))
    dtype = ModelDtype.FLOAT32
    return load_model(source, dtype=dtype, device=CPU, on_progress=ignore_progress, kernels=kernels)


def kernels_of(loaded: LoadedModel) -> list[type]:
    """The kernels of all linear layers and embeddings, in their order; `None` is torch's."""
    forwards = [
        vars(part).get("forward")
        for part in loaded.module.modules()
        if isinstance(part, nn.Linear | nn.Embedding)
    ]
    return [
        type(each.kernel if isinstance(each, PackedForward | PackedLookup) else each)
        for each in forwards
    ]


def plans(file: Path, kernels: ModelKernels) -> tuple[Preview, Outline]:
    folder = locate_file(file)
    target = Target(ModelDtype.FLOAT32, CPU, kernels)
    options = OutlineOptions(CPU, ModelDtype.FLOAT32, kernels, 8, KVOptions())
    return (
        look_ahead(folder, target, trust_remote_code=False),
        outline(folder, read_config(folder), options),
    )


def assert_same(found: Tensor, expected: Tensor, folder: Path) -> None:
    assert_same_logits(found, expected, folder, 7)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_model_of_mixed_blocks_stays_in_them_and_is_the_same(
    is_tied: bool, tmp_path: Path
) -> None:
    """As files of K-quants have it: values of attention, and embeddings, in other blocks."""
    folder = save_model(tmp_path / "whole", is_tied=is_tied)
    file = tmp_path / "model.gguf"
    write_model(folder, file, "llama", kind={**MIXED, "": KIND.Q4_0})
    kernels = kernels_for()
    loaded, plain = load(file, kernels), load(file, None)
    assert set(kernels_of(loaded)) == {GroupedKernel}
    decoder = vars(loaded.module)["forward"]
    assert isinstance(decoder, DecoderForward) and decoder.native is not None
    assert loaded.left_out == ()
    assert_same(logits(loaded), logits(plain), folder)
    preview, planned = plans(file, kernels)
    assert planned.weight_bytes == loaded.weight_bytes
    assert 0 <= loaded.weight_bytes - preview.weight_bytes < 0.01 * loaded.weight_bytes
    assert file.stat().st_size < loaded.weight_bytes * 1.2 < 0.3 * plain.weight_bytes


def test_switched_off_they_are_widened(tied: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_model(tied, file, "llama", kind=KIND.Q4_1)
    kernels = kernels_for((Optimization.GROUPED_WEIGHTS,))
    loaded = load(file, kernels)
    assert GroupedKernel not in kernels_of(loaded)
    assert plans(file, kernels)[1].weight_bytes == loaded.weight_bytes


def test_int4_keeps_what_has_four_bits_and_quantises_the_rest(tied: Path, tmp_path: Path) -> None:
    """Layers of eight bits become four, and the head keeps its eight."""
    file = tmp_path / "model.gguf"
    write_model(tied, file, "llama", kind={**MIXED, "": KIND.Q4_1})
    disabled = (Optimization.AVX512, Optimization.W8A8)
    quantised = load(file, kernels_for(disabled, Quantization.INT4))
    exact = load(file, kernels_for())
    assert quantised.weight_bytes < exact.weight_bytes
    weights, packed = (dict(each.module.named_parameters()) for each in (exact, quantised))
    for name, weight in weights.items():
        stays = not any(part in name for part in ("v_proj", "up_proj"))
        assert (weight.nbytes == packed[name].nbytes) == stays, name
    planned = plans(file, kernels_for(disabled, Quantization.INT4))[1]
    assert planned.weight_bytes == quantised.weight_bytes
    apart = (logits(quantised) - logits(exact)).square().mean().sqrt()
    assert 0 < apart < 0.2 * logits(exact).std()
