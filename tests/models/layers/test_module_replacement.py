"""Fused parts say what they stand for; what only looks like them is left alone."""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.models.layers.decoder import DecoderForward
from quire.models.layers.fused_layers import (
    AttentionForward,
    GatedForward,
    LayerForward,
    NormForward,
)
from quire.models.layers.linears import pack_linears
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.module_replacement import replace_modules
from quire.models.loading.loaded_model import LoadedModel
from quire.models.native.decoder.decoder import bind_decoder
from quire.models.native.decoder.fused import FusedKernels, bind_fused
from quire.models.native.linear.bf16_storage import bind_bf16_storage
from quire.models.native.linear.quantised.w8a8 import W8A8Kernel
from quire.models.native.linear.quantised.w8a32 import bind_w8a32
from tests.instructions import built_library, library_of
from tests.long import long_but_for
from tests.models.checkpoints import save_checkpoint
from tests.models.driver import load
from tests.models.families import DEFAULT_ROPE, SERVED, Family, Fields
from tests.models.layers.test_linears import PROMPT, load_packed, logits
from tests.models.logits_error import assert_same_logits
from tests.models.paging import Paging

WHOLE_PANELS = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
MORE_FIELDS: dict[str, Fields] = {
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 4},
    "qwen3_5_text": {
        "rope_parameters": {
            **DEFAULT_ROPE,
            "mrope_section": [1, 1, 2],
            "partial_rotary_factor": 0.5,
        },
    },
    "kimi_linear": {"head_dim": 8, "num_key_value_heads": 4},
}
"""EXAONE 4 has layers without rotary embeddings beside those with windows, Qwen 3.5 has sizes of
sections of its heads, and Kimi's attention is latent."""
WITH_IMAGES = "gemma3, text alone"
NORMS_BEHIND = ("gemma2", "gemma3_text", WITH_IMAGES, "exaone4", "vaultgemma")
AT_ONCE = (
    *("qwen2, windows in the upper layers", "qwen3", "gemma2", "qwen3_5_text", "lfm2"),
    *NORMS_BEHIND[1:],
)
"""The first five in every run: windows, norms of heads, norms behind layers, gated delta nets
beside gated attention, short convolutions."""
WHOLE_LAYERS = (
    *("llama", "qwen2", "qwen3", "mistral, window", "phi3", "gemma", "granite", "smollm3"),
    *("qwen3_5_text", "lfm2"),
    *NORMS_BEHIND,
)
PARTS_ALONE = {
    "stablelm": (AttentionForward, GatedForward),
    "qwen3_moe": (NormForward, AttentionForward),
    "cohere": (GatedForward,),
    "olmo2": (NormForward, GatedForward),
    "qwen3_next": (NormForward, AttentionForward),
}
"""Of layers that are made otherwise."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replacements")


@pytest.fixture(scope="module")
def fused(checkpoints: Path, kernels: ModelKernels) -> Callable[[str], LoadedModel]:
    """Models of which tests change nothing, each loaded once."""
    return cache(lambda name: load_packed(checkpoint(checkpoints, name), kernels))


def checkpoint(folder: Path, name: str, **more: object) -> Path:
    """`more`: other fields of its configuration."""
    family = SERVED[name]
    fields = {**WHOLE_PANELS, **MORE_FIELDS.get(name, {}), **more}
    fields = {**family.fields, **fields} if name != WITH_IMAGES else of_text(family.fields, fields)
    path = folder / "-".join((name, *map(str, more.values())))
    return (
        path if path.exists() else save_checkpoint(Family(family.model_type, fields=fields), path)
    )


def of_text(of_family: Fields, fields: Fields) -> Fields:
    """The fields of a family that takes images too, with these in its text's configuration."""
    text = of_family["text_config"]
    assert isinstance(text, dict)
    return {**of_family, "text_config": {**text, **fields}}


def kinds_in(loaded: LoadedModel) -> set[type]:
    """Of the parts that stand in now."""
    found = {type(vars(part).get("forward")) for part in loaded.module.modules()}
    return found & {NormForward, GatedForward, AttentionForward, LayerForward, DecoderForward}


def errors(folder: Path, fused: LoadedModel) -> tuple[float, float]:
    """Mean squares, with kernels and without, against the model in float32."""
    truth = logits(load(folder, "float32"))

    def error(said: Tensor) -> float:
        return float((said - truth).square().mean())

    return error(logits(fused)), error(logits(load(folder, "bfloat16")))


@pytest.mark.parametrize("name", WHOLE_LAYERS)
def test_plain_layers_are_fused_as_a_whole(name: str, fused: Callable[[str], LoadedModel]) -> None:
    loaded = fused(name)
    assert {LayerForward, DecoderForward} <= kinds_in(loaded)


@pytest.mark.parametrize("name", PARTS_ALONE)
def test_other_layers_have_their_parts_fused(
    name: str, fused: Callable[[str], LoadedModel]
) -> None:
    loaded = fused(name)
    assert kinds_in(loaded) == set(PARTS_ALONE[name])


def test_fused_models_are_no_worse_than_the_plain_ones(
    checkpoints: Path, fused: Callable[[str], LoadedModel]
) -> None:
    """On the whole: in one so small a single rounding may show."""
    found = [
        errors(checkpoint(checkpoints, name), fused(name)) for name in (*WHOLE_LAYERS, *PARTS_ALONE)
    ]
    assert sum(error / plain for error, plain in found) <= 1.2 * len(found)
    assert all(error <= 3 * plain for error, plain in found)


def test_layers_over_quantised_weights_are_fused_too(
    checkpoints: Path, kernels: ModelKernels, w8a8_kernel: W8A8Kernel
) -> None:
    folder = checkpoint(checkpoints, "qwen2")
    fused = load_packed(folder, kernels._replace(linears=(w8a8_kernel,)))
    plain = load_packed(folder, ModelKernels((w8a8_kernel,)))
    assert LayerForward in kinds_in(fused) and not kinds_in(plain)
    spread = logits(plain).std()
    assert (logits(fused) - logits(plain)).square().mean().sqrt() <= 0.05 * spread


def test_float32_models_are_fused_over_bytes_and_over_halves(
    tmp_path: Path, kernels: ModelKernels, w8a8_kernel: W8A8Kernel
) -> None:
    family = Family("qwen2", fields={**SERVED["qwen2"].fields, **WHOLE_PANELS})
    folder = save_checkpoint(family, tmp_path, torch.bfloat16)
    plain, built = load(folder, "float32"), built_library()
    over_bytes = load_packed(folder, kernels._replace(linears=(w8a8_kernel,)), "float32")
    unfused = logits(load_packed(folder, ModelKernels((w8a8_kernel,)), "float32"))
    assert DecoderForward in kinds_in(over_bytes)
    assert (logits(over_bytes) - unfused).square().mean().sqrt() <= 0.01 * unfused.std()
    for isa in built.isas:
        lent = built.of(isa)
        given = ModelKernels((bind_bf16_storage(lent),), bind_fused(lent), bind_decoder(lent))
        over_halves = load_packed(folder, given, "float32")
        one_by_one = load_packed(folder, given._replace(decoder=None), "float32")
        assert DecoderForward in kinds_in(over_halves)
        assert_same_logits(logits(over_halves), logits(plain), folder, len(PROMPT))
        if isa == built.isa:  # so that attention is the same too
            for rows in ([], [len(PROMPT) - 1], [0, 3]):
                assert torch.equal(logits(over_halves, rows), logits(one_by_one, rows))


@pytest.mark.parametrize("isa", ["portable", "avx2"])
def test_float32_models_are_fused_over_bytes_that_are_widened(isa: str, tmp_path: Path) -> None:
    lent = library_of(isa)
    widened = bind_w8a32(lent)
    family = Family("qwen2", fields={**SERVED["qwen2"].fields, **WHOLE_PANELS})
    folder = save_checkpoint(family, tmp_path, torch.bfloat16)
    given = ModelKernels((widened,), bind_fused(lent), bind_decoder(lent))
    fused = load_packed(folder, given, "float32")
    plain = load_packed(folder, ModelKernels((widened,)), "float32")
    assert DecoderForward in kinds_in(fused)
    assert_same_logits(logits(fused), logits(plain), folder, len(PROMPT))


@long_but_for(AT_ONCE[:5], "name", AT_ONCE)
def test_layers_at_once_say_what_they_say_one_by_one(
    name: str, checkpoints: Path, kernels: ModelKernels, w8a8_kernel: W8A8Kernel
) -> None:
    folder = checkpoint(checkpoints, name)
    for linears in (kernels.linears, (w8a8_kernel,)):
        at_once = load_packed(folder, kernels._replace(linears=linears))
        one_by_one = load_packed(folder, kernels._replace(linears=linears, decoder=None))
        decoder = vars(at_once.module)["forward"]
        assert isinstance(decoder, DecoderForward) and decoder.native is not None
        for rows in ([], [len(PROMPT) - 1], [0, 3], range(len(PROMPT))):
            assert torch.equal(logits(at_once, rows), logits(one_by_one, rows))


def test_block_outside_of_the_store_is_an_error(fused: Callable[[str], LoadedModel]) -> None:
    loaded = fused("llama")
    paging = Paging(1, 16, block_size=4)
    batch = paging.batch([(0, 0, PROMPT)], rows=[0])
    slots = (batch.slots[0].clone().fill_(4 * paging.num_blocks),)
    with pytest.raises(IndexError, match="outside"):
        loaded.attach(paging.num_blocks, 4).forward(dataclasses.replace(batch, slots=slots))


def test_residual_multipliers_are_not_lost(checkpoints: Path, kernels: ModelKernels) -> None:
    folder = checkpoint(checkpoints, "granite", residual_multiplier=0.5)
    loaded = load_packed(folder, kernels)
    assert LayerForward not in kinds_in(loaded)
    error, plain = errors(folder, loaded)
    assert error <= 3 * plain


def test_each_kind_of_layer_has_its_own_rotary_embeddings(
    fused: Callable[[str], LoadedModel],
) -> None:
    """Gemma 3's windows turn by another base: a decoder that mixed them up would not be kept."""
    loaded = fused("gemma3_text")
    decoder = vars(loaded.module)["forward"]
    assert isinstance(decoder, DecoderForward)
    assert decoder.rotary.kinds == ("full_attention", "sliding_attention")
    windows = [layer.window_size is not None for layer in loaded.facts.layers]
    kinds = [decoder.rotary.kinds[kind] for kind in decoder.rotary.of_layers]
    assert [kind == "sliding_attention" for kind in kinds] == windows


def test_scaled_logits_are_not_lost(checkpoints: Path, kernels: ModelKernels) -> None:
    folder = checkpoint(checkpoints, "granite", logits_scaling=2.0)
    loaded = load_packed(folder, kernels)
    assert LayerForward in kinds_in(loaded) and DecoderForward not in kinds_in(loaded)
    error, plain = errors(folder, loaded)
    assert error <= 3 * plain


@pytest.mark.parametrize("act", ["relu", "gelu", "silu", "gelu_pytorch_tanh"])
def test_only_known_activations_are_fused(
    act: str, checkpoints: Path, kernels: ModelKernels
) -> None:
    loaded = load_packed(checkpoint(checkpoints, "llama", hidden_act=act), kernels)
    assert (GatedForward in kinds_in(loaded)) == (act in ("silu", "gelu_pytorch_tanh"))


def test_epsilon_is_that_of_the_model(checkpoints: Path, kernels: ModelKernels) -> None:
    """Large enough to be seen in every norm."""
    folder = checkpoint(checkpoints, "llama", rms_norm_eps=0.5)
    error, plain = errors(folder, load_packed(folder, kernels))
    assert error <= 3 * plain


@pytest.mark.parametrize(
    ("name", "part", "names"),
    [
        ("llama", "self_attn", ["q_proj", "k_proj", "v_proj"]),
        ("llama", "mlp", ["gate_proj", "up_proj"]),
        ("qwen3_5_text", "linear_attn", [f"in_proj_{each}" for each in ("qkv", "z", "b", "a")]),
        ("qwen3_next", "linear_attn", ["in_proj_qkvz", "in_proj_ba"]),
        ("olmo_hybrid", "linear_attn", [f"{each}_proj" for each in "qkvgba"]),
        (
            "kimi_linear",
            "self_attn",
            ["q_proj", "k_proj", "v_proj", "b_proj", "forget_gate.f_a_proj", "g_a_proj"],
        ),
    ],
)
def test_weights_that_are_joined_are_there_once(
    name: str, part: str, names: list[str], fused: Callable[[str], LoadedModel]
) -> None:
    module = fused(name).module
    owner = next(each for at, each in module.named_modules() if at.endswith(f"layers.0.{part}"))
    weights = [owner.get_submodule(name).get_parameter("weight") for name in names]
    assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1


def test_undone_the_model_is_as_it_was(checkpoints: Path, kernels: ModelKernels) -> None:
    loaded = load_packed(checkpoint(checkpoints, "llama"), ModelKernels(kernels.linears))
    said = logits(loaded)
    replacements = replace_modules(loaded.module, kernels, loaded.context, lambda: logits(loaded))
    assert kinds_in(loaded)
    replacements.undo()
    assert not kinds_in(loaded)
    assert torch.equal(logits(loaded), said)


def test_unpacked_after_surgery_the_weights_are_those_of_the_file(
    checkpoints: Path, kernels: ModelKernels
) -> None:
    folder = checkpoint(checkpoints, "qwen2")
    loaded, plain = load(folder, "bfloat16"), load(folder, "bfloat16")
    packed = pack_linears(loaded.module, kernels.linears)
    replace_modules(loaded.module, kernels, loaded.context, lambda: logits(loaded)).undo()
    packed.undo()
    kept = dict(plain.module.named_parameters())
    assert all(torch.equal(weight, kept[name]) for name, weight in loaded.module.named_parameters())


@pytest.mark.parametrize("name", ["norm_into", "rope_over", "gate_into", "sum_into"])
def test_part_that_fails_is_left_out(name: str, checkpoints: Path, kernels: ModelKernels) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no kernel")

    folder = checkpoint(checkpoints, "llama")
    assert isinstance(kernels.fused, FusedKernels)
    broken = dataclasses.replace(kernels.fused)
    object.__setattr__(broken, name, fail)
    loaded = load_packed(folder, kernels._replace(fused=broken))
    assert LayerForward not in kinds_in(loaded)
    assert torch.isfinite(logits(loaded)).all()
