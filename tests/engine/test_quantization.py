"""`--quantization`: the engine generates over fewer bytes, or says at once why it cannot."""

import time
from dataclasses import replace

import pytest
import torch

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts
from quire.engine.startup.build import build_engine
from quire.engine.startup.receipt import receipt_text
from quire.models.config import LinearBackend, ModelDtype, Quantization
from quire.models.loading.formats import int8
from quire.models.loading.formats.weight_format import KernelOptions
from quire.models.loading.kernels import choose_kernels
from quire.models.optimizations import Optimization
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.instructions import built_library
from tests.models.test_bundled import FOLDER

NOT_FOUND = ModelConfig("/no/such/model", quantization=Quantization.INT8, device="cpu")
BUNDLED = EngineConfig(
    ModelConfig(str(FOLDER), device="cpu", quantization=Quantization.INT8),
    memory=MemoryConfig(kv_cache_tokens=256),
    scheduling=SchedulingConfig(max_model_len=128),
)
NUM_NEW = 12


def build(config: EngineConfig) -> tuple[Engine, EngineFacts]:
    return build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)


def weight_bytes(facts: EngineFacts) -> int:
    return next(line.num_bytes for line in facts.receipt if line.kind == "weights")


@pytest.mark.usefixtures("w8a8_kernel")
@pytest.mark.parametrize("dtype", [ModelDtype.BFLOAT16, ModelDtype.FLOAT32])
@pytest.mark.parametrize(
    ("quantization", "share"), [(Quantization.INT8, 0.77), (Quantization.INT4, 0.6)]
)
def test_quantised_engine_generates_over_fewer_bytes(
    quantization: Quantization, share: float, dtype: ModelDtype
) -> None:
    """Than 12 bits, or 32. Of the 384 bytes of 256 columns in 12 bits, int8 with scale and outliers
    takes 256 + 4 + 32 (0.76), int4 with steps and begins too 128 + 24 + 4 + 32 (0.49) beside a head
    in int8."""
    model = replace(BUNDLED.model, dtype=dtype, quantization=quantization)
    config = replace(BUNDLED, model=model)
    engine, facts = build(config)
    assert len(generated(engine)) == NUM_NEW
    _, plain = build(replace(config, model=replace(config.model, quantization=Quantization.NONE)))
    assert weight_bytes(facts) < share * weight_bytes(plain)
    assert (facts.quantization, facts.dtype) == (quantization, dtype)
    assert f"{dtype}, weights in {quantization}" in receipt_text(facts)
    assert "weights in" not in receipt_text(plain)


def generated(engine: Engine) -> list[int]:
    prompt = tuple(range(3, 20))
    new = NewRequest("0", prompt, Sampling(temperature=0.0), Stopping(NUM_NEW))
    assert engine.submit(new) is None
    token_ids: list[int] = []
    while engine.has_work:
        for delta in engine.step().deltas:
            token_ids += delta.token_ids
    return token_ids


@pytest.mark.parametrize(
    ("missing", "quantization", "share"),
    [
        (Optimization.AVX2, Quantization.INT8, 0.7),
        (Optimization.AVX512, Quantization.INT8, 0.7),
        (Optimization.AVX512, Quantization.INT4, 0.5),
        (Optimization.W8A8, Quantization.INT4, 0.5),
    ],
)
def test_cpus_that_cannot_multiply_bytes_widen_them(
    missing: Optimization, quantization: Quantization, share: float
) -> None:
    built_library()
    model = replace(BUNDLED.model, quantization=quantization, disable_optimizations=(missing,))
    config = replace(BUNDLED, model=model)
    engine, facts = build(config)
    assert (facts.quantization, facts.dtype) == (quantization, "float32")
    exact = replace(model, quantization=Quantization.NONE, dtype=ModelDtype.FLOAT32)
    _, plain = build(replace(config, model=exact))
    assert weight_bytes(facts) < share * weight_bytes(plain), "of 16 bits or 32"
    assert len(generated(engine)) == NUM_NEW
    with pytest.raises(ValueError, match=r"--quantization int\d computes in float32 .* leave"):
        build(replace(config, model=replace(model, dtype=ModelDtype.BFLOAT16)))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            replace(NOT_FOUND, linear_backend=LinearBackend.TORCH),
            "--quantization int8 needs the C.. kernels: leave out --linear-backend torch",
        ),
        (
            replace(NOT_FOUND, dtype=ModelDtype.FLOAT16),
            "--quantization int8 computes in bfloat16 or float32: pass another --dtype",
        ),
    ],
    ids=["backend", "dtype"],
)
def test_what_cannot_be_is_refused_before_the_model_is_looked_for(
    config: ModelConfig, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        build(EngineConfig(config))


def test_a_gpu_is_told_that_it_is_for_cpus() -> None:
    options = KernelOptions(quantization=Quantization.INT8)
    said = "--quantization int8 runs on a CPU only, not on cuda:0: pass --device cpu"
    with pytest.raises(ValueError, match=said):
        choose_kernels(options, torch.device("cuda:0"))


def test_a_machine_without_the_kernels_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "library", lambda: None)
    with pytest.raises(ValueError, match=r"--quantization int8 needs .* not built"):
        build(EngineConfig(NOT_FOUND))
