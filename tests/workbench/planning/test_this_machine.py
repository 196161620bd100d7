"""A plan of this machine says what an engine that is started here says."""

import time
from importlib.resources import files

import pytest

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.messages import EngineFacts
from quire.engine.startup.build import build_engine
from quire.models.config import LinearBackend, ModelDtype, Quantization
from quire.workbench.planning.plan import PlanRequest, RequestLengths, build_plan
from tests.long import long_but_for

BUNDLED = str(files("quire.models") / "bundled")
SHORT = RequestLengths(32, 8)
EXACT = ("device", "scratch", "graphs", "kv", "swap")
"""The lines of the receipt that are the same to the byte. Activations are measured, and what is
unused depends on what other programs do; weights in 12 bits depend on their numbers."""
ESTIMATED_SHARE = 0.15
FIRST_TOUCHED = 16 << 20
"""The bytes that a measured step may take beside its tensors: pages of libraries and of the
allocator's pools are resident from when a step first touches them, in whatever test that is."""

CONFIGS = {
    "as it comes": EngineConfig(ModelConfig(BUNDLED, device="cpu")),
    "by torch": EngineConfig(
        ModelConfig(
            BUNDLED, device="cpu", dtype=ModelDtype.FLOAT32, linear_backend=LinearBackend.TORCH
        ),
        MemoryConfig(block_size=32, kv_cache_memory_bytes=64 << 20),
        SchedulingConfig(max_model_len=512, max_num_seqs=8, max_num_batched_tokens=128),
    ),
    "in int8": EngineConfig(
        ModelConfig(BUNDLED, device="cpu", quantization=Quantization.INT8),
        scheduling=SchedulingConfig(max_num_seqs=4),
    ),
}


def started(config: EngineConfig) -> EngineFacts:
    _, facts = build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
    return facts


@long_but_for(["as it comes"], "name", CONFIGS)
def test_a_plan_says_what_an_engine_says(name: str) -> None:
    config = CONFIGS[name]
    plan = build_plan(PlanRequest(None, "cpu", lengths=SHORT), config)
    planned, facts = plan.facts, started(config)
    assert planned is not None
    lines = {line.kind: line.num_bytes for line in planned.receipt}
    receipt = {line.kind: line.num_bytes for line in facts.receipt}
    assert list(lines) == list(receipt)
    assert {kind: lines[kind] for kind in EXACT} == {kind: receipt[kind] for kind in EXACT}
    if facts.dtype == "bfloat16" and name == "as it comes":
        assert lines["weights"] == pytest.approx(receipt["weights"], rel=ESTIMATED_SHARE)
    else:
        assert lines["weights"] == receipt["weights"]
    assert lines["activation"] < 5 * receipt["activation"]
    assert receipt["activation"] < 5 * lines["activation"] + FIRST_TOUCHED
    for field in ("dtype", "device", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
        assert getattr(planned, field) == getattr(facts, field)
    for field in ("block_size", "num_blocks", "attention", "quantization", "vocab_size"):
        assert getattr(planned, field) == getattr(facts, field)
    for field in ("kv_dtype", "kv_tokens", "kv_token_bytes", "layer_groups", "max_concurrency"):
        assert getattr(planned.memory, field) == getattr(facts.memory, field)
    assert planned.memory.max_model_len_fits == facts.memory.max_model_len_fits


def test_this_machine_is_measured() -> None:
    plan = build_plan(PlanRequest(None, "cpu", lengths=SHORT), CONFIGS["by torch"])
    assert plan.device.bytes_s > 0 and plan.device.flops_of("float32") > 0
    assert "measured" in plan.device.source and all(
        each.figures.output_tok_s > 0 for each in plan.forecasts
    )
