"""Weight formats come from the registry, and a second, naive one serves a model through it."""

import logging
import time

import pytest
import torch

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.messages import EngineFacts
from quire.engine.startup.build import build_engine
from quire.models.config import LinearBackend, ModelDtype, Quantization
from quire.models.loading.formats import int8
from quire.models.loading.formats.weight_format import KernelOptions
from quire.models.loading.kernels import choose_kernels
from quire.models.native import library
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.models.loading.naive_int8 import NAIVE_INT8, NaiveInt8Kernel
from tests.models.test_bundled import FOLDER

PROMPT = (0, 1252, 266)
NUM_NEW = 12
GPU = torch.device("cuda:0")


@pytest.mark.parametrize("name", [name for name in Quantization if name.implementation])
def test_every_name_leads_to_a_format_that_is_not_exact(name: Quantization) -> None:
    with pytest.raises(ValueError, match=f"--quantization {name} .*{GPU}"):
        choose_kernels(KernelOptions(name), GPU)
    if library() is None:
        return
    kernels = choose_kernels(KernelOptions(name), torch.device("cpu"))
    assert kernels is not None and not kernels.are_exact


def served(
    quantization: Quantization, dtype: ModelDtype, linear_backend: LinearBackend
) -> tuple[list[int], EngineFacts]:
    """What the bundled model says after the prompt, whose answer no small error changes."""
    config = EngineConfig(
        ModelConfig(
            str(FOLDER),
            device="cpu",
            dtype=dtype,
            quantization=quantization,
            linear_backend=linear_backend,
        ),
        memory=MemoryConfig(kv_cache_tokens=64),
        scheduling=SchedulingConfig(max_model_len=32),
    )
    engine, facts = build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
    new = NewRequest("0", PROMPT, Sampling(temperature=0.0), Stopping(NUM_NEW))
    assert engine.submit(new) is None
    token_ids: list[int] = []
    while engine.has_work:
        for delta in engine.step().deltas:
            token_ids += delta.token_ids
    return token_ids, facts


def weight_bytes(facts: EngineFacts) -> int:
    return next(line.num_bytes for line in facts.receipt if line.kind == "weights")


@pytest.mark.parametrize(("dtype", "itemsize"), [(ModelDtype.BFLOAT16, 2), (ModelDtype.FLOAT32, 4)])
def test_registered_format_serves_a_model(
    dtype: ModelDtype,
    itemsize: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    said, plain = served(Quantization.NONE, dtype, LinearBackend.TORCH)
    monkeypatch.setattr(int8, "INT8", NAIVE_INT8)
    caplog.set_level(logging.INFO, "quire")
    found, facts = served(Quantization.INT8, dtype, LinearBackend.TORCH)
    assert found == said and len(found) == NUM_NEW
    assert 1 / itemsize < weight_bytes(facts) / weight_bytes(plain) < 1.05 / itemsize
    assert (facts.quantization, facts.dtype) == ("int8", dtype)
    assert "quantised 43 weights" in caplog.text


def test_a_format_that_computes_something_else_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(int8, "INT8", NAIVE_INT8)
    monkeypatch.setattr(NaiveInt8Kernel, "linear", lambda _, x, weight, bias: -x[..., :1])
    with pytest.raises(Exception, match="over quantised weights"):
        served(Quantization.INT8, ModelDtype.FLOAT32, LinearBackend.AUTO)
