"""`--disable-optimizations`: what is named is not used, and the text stays the same."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from quire.engine.config import (
    TOY_MODEL,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    SchedulingConfig,
)
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts
from quire.engine.sampling.build_sampler import build_sampler, sampler_bytes
from quire.engine.sampling.native_sampler import NativeSampler
from quire.engine.sampling.torch_sampler import TorchSampler
from quire.engine.startup.build import build_engine
from quire.models.config import ModelDtype, Quantization
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.module_replacement import packed_tensors
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.formats.weight_format import KernelOptions
from quire.models.loading.kernels import choose_kernels
from quire.models.loading.loader import load_model
from quire.models.native.linear.bf16_storage import Bf16StorageKernel
from quire.models.native.linear.compressed_bf16 import CompressedBf16Kernel
from quire.models.native.linear.quantised.w8a8 import W8A8Kernel
from quire.models.native.linear.quantised.w8a32 import W8A32Kernel
from quire.models.optimizations import Disabled, Optimization
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.instructions import ISAS_WITH_PRODUCTS, library_of, library_with_products
from tests.models.driver import ignore_progress
from tests.models.test_bundled import FOLDER

CPU = torch.device("cpu")
BUNDLED = ModelConfig(str(FOLDER), device="cpu")
MODELS = (
    replace(BUNDLED, dtype=ModelDtype.BFLOAT16),
    replace(BUNDLED, dtype=ModelDtype.FLOAT32),
    replace(BUNDLED, quantization=Quantization.INT8),
)
FORMS = ("bfloat16", "float32", "int8")
IN_EVERY_RUN = {name: FORMS[1:2] for name in Optimization} | {
    Optimization.AVX512: FORMS[:1],
    Optimization.AMX: FORMS[:1],
    Optimization.COMPRESSED_BF16: FORMS[:1],
    Optimization.W8A8: FORMS[2:],
    Optimization.FUSED_LAYERS: FORMS[:2],
    Optimization.NATIVE_DECODER: FORMS[:2],
}
"""The forms of weights over which each is left out in every run: those that it is for."""
PROMPT = (0, 1252, 266)
NUM_NEW = 12


def build(model: ModelConfig, kv_cache_tokens: int = 256) -> tuple[Engine, EngineFacts]:
    memory = MemoryConfig(kv_cache_tokens=kv_cache_tokens)
    scheduling = SchedulingConfig(max_model_len=128)
    config = EngineConfig(model, memory=memory, scheduling=scheduling)
    return build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)


def generated(model: ModelConfig) -> list[int]:
    engine, _ = build(model)
    new = NewRequest("0", PROMPT, Sampling(temperature=0.0), Stopping(NUM_NEW))
    assert engine.submit(new) is None
    token_ids: list[int] = []
    while engine.has_work:
        for delta in engine.step().deltas:
            token_ids += delta.token_ids
    return token_ids


@pytest.fixture(scope="module")
def with_all() -> dict[ModelConfig, list[int]]:
    return {model: generated(model) for model in MODELS}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param(
            name, model, id=f"{name}-{form}", marks=() if form in forms else pytest.mark.long
        )
        for name, forms in IN_EVERY_RUN.items()
        for model, form in zip(MODELS, FORMS, strict=True)
    ],
)
def test_text_is_the_same_without_it(
    name: Optimization, model: ModelConfig, with_all: dict[ModelConfig, list[int]]
) -> None:
    """In each step of this prompt the most likely token is far ahead of the next one."""
    found = generated(replace(model, disable_optimizations=(name,)))
    assert found == with_all[model] and len(found) == NUM_NEW


def test_toy_says_the_same_without_any() -> None:
    toy = ModelConfig(TOY_MODEL)
    found = [generated(replace(toy, disable_optimizations=off)) for off in ((), (*Optimization,))]
    assert found[0] == found[1]


def chosen(*disabled: Optimization, quantization: Quantization = Quantization.NONE) -> ModelKernels:
    library_with_products()
    options = KernelOptions(quantization=quantization, disabled=disabled)
    kernels = choose_kernels(options, CPU)
    assert kernels is not None
    return kernels


def kinds(kernels: ModelKernels) -> list[type]:
    return [type(kernel) for kernel in kernels.linears]


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        (Optimization.COMPRESSED_BF16, lambda given: CompressedBf16Kernel in kinds(given)),
        (Optimization.BF16_STORAGE, lambda given: Bf16StorageKernel in kinds(given)),
        (Optimization.FUSED_LAYERS, lambda given: given.fused is not None),
        (Optimization.NATIVE_DECODER, lambda given: given.decoder is not None),
    ],
)
def test_each_kernel_is_left_out_alone(
    name: Optimization, is_there: Callable[[ModelKernels], bool]
) -> None:
    assert not is_there(chosen(name))
    assert all(is_there(chosen(other)) for other in Optimization if other not in (name, *ISAS))


ISAS = (Optimization.AVX2, Optimization.AVX512, Optimization.AMX)


def test_without_products_of_int8_weights_are_widened() -> None:
    assert kinds(chosen(quantization=Quantization.INT8)) == [W8A8Kernel]
    widened = chosen(Optimization.W8A8, quantization=Quantization.INT8)
    assert kinds(widened) == [W8A32Kernel]
    assert widened.decoder is None, "this CPU's reads no such weights"


@pytest.mark.parametrize(
    ("name", "isa"), [(Optimization.AMX, "avx512"), (Optimization.AVX512, "avx2")]
)
def test_without_an_instruction_set_the_one_below_is_used(name: Optimization, isa: str) -> None:
    library_of(name)
    _, facts = build(replace(MODELS[0], disable_optimizations=(name,)))
    assert facts.attention == f"cpu ({isa})"
    found = kinds(chosen(name))
    assert (CompressedBf16Kernel in found) == (isa in ISAS_WITH_PRODUCTS)


def test_without_the_native_sampler_torch_samples() -> None:
    library_with_products()
    disabled = (Optimization.NATIVE_SAMPLER,)
    assert isinstance(build_sampler(100, CPU), NativeSampler)
    assert isinstance(build_sampler(100, CPU, disabled), TorchSampler)
    assert sampler_bytes(32_000, CPU, disabled) > sampler_bytes(32_000, CPU)


@pytest.mark.parametrize("disabled", [(), (Optimization.WEIGHT_RELOCATION,)])
def test_weights_lie_in_one_region_only_with_relocation(disabled: Disabled) -> None:
    loaded = load_model(
        ModelSource(str(FOLDER)),
        dtype=ModelDtype.BFLOAT16,
        device=CPU,
        on_progress=ignore_progress,
        kernels=chosen(*disabled),
    )
    weights = packed_tensors(loaded.module)
    regions = {weight.untyped_storage().data_ptr() for weight in weights}
    assert len(weights) > 10 and (len(regions) == 1) == (not disabled)
