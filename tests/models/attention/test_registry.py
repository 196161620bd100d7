"""Backends are chosen from the registry, and a second, naive one serves a model through it."""

import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.startup.build import build_engine
from quire.models.attention import cpu, reference
from quire.models.attention.backend import AttentionSetup
from quire.models.attention.choice import attention_name, build_attention, registered
from quire.models.config import AttentionBackendName, KVCacheDtype, LayerFeature
from quire.models.kv.kv_codec import choose_codec
from quire.models.native import library
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.models.attention.cases import shapes, spans
from tests.models.attention.naive import NAIVE, NaiveAttention
from tests.models.attention.scene import Scene, Shape, Span
from tests.models.attention.test_backends import assert_right
from tests.models.test_bundled import FOLDER
from tests.profiles import cases

PROMPT = (0, 1252, 266)
NUM_NEW = 6
FLOAT16 = AttentionSetup(
    torch.device("cpu"),
    choose_codec(KVCacheDtype.AUTO, torch.float16),
    head_size=32,
    v_head_size=32,
)


@pytest.mark.parametrize("name", [n for n in AttentionBackendName if n.implementation])
def test_every_name_leads_to_a_backend(name: AttentionBackendName) -> None:
    """Of which only those that can run are found by a name in logs."""
    backend = registered(name)
    if backend.why_not(FLOAT16) is None:
        assert attention_name(name, FLOAT16).startswith(name)
    else:
        with pytest.raises(ValueError, match=f"--attention-backend {name} cannot be had: "):
            attention_name(name, FLOAT16)


@cases(20)
@given(shapes, spans, st.integers(0, 2**32))
def test_naive_backend_does_what_every_one_must(shape: Shape, spans: list[Span], seed: int) -> None:
    assert_right(NaiveAttention, Scene(shape, spans, seed), seed)


def test_registered_backend_is_tried_by_auto_after_those_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference, "REFERENCE", NAIVE)
    assert attention_name(AttentionBackendName.AUTO, FLOAT16) == "naive"
    if library() is not None:
        float32 = choose_codec(KVCacheDtype.AUTO, torch.float32)
        site = FLOAT16._replace(codec=float32)
        assert attention_name(AttentionBackendName.AUTO, site).startswith("cpu")
    scene = Scene(Shape(dtype=torch.float16), [Span(0, 3)])
    store = scene.store(scene.paging())
    assert isinstance(build_attention(store, AttentionBackendName.AUTO), NaiveAttention)


def test_a_backend_that_lacks_a_feature_is_passed_over_and_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    softcaps = frozenset({LayerFeature.SOFTCAP})
    monkeypatch.setattr(cpu, "CPU", replace(NAIVE, features=softcaps))
    site = FLOAT16._replace(features=frozenset({LayerFeature.SOFTCAP, LayerFeature.SINKS}))
    said = "reference (not cpu: it does not compute sinks)"
    assert attention_name(AttentionBackendName.AUTO, site) == said
    assert attention_name(AttentionBackendName.AUTO, site._replace(features=softcaps)) == "naive"
    with pytest.raises(ValueError, match="cpu cannot be had: it does not compute sinks"):
        attention_name(AttentionBackendName.CPU, site)
    scene = Scene(Shape(dtype=torch.float16, has_sinks=True), [Span(0, 3)])
    store = scene.store(scene.paging())
    built = build_attention(store, AttentionBackendName.AUTO, features=scene.layer.features)
    assert not isinstance(built, NaiveAttention)


def test_registered_backend_serves_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    said = generated(AttentionBackendName.EAGER, "eager")
    monkeypatch.setattr(reference, "REFERENCE", NAIVE)
    assert generated(AttentionBackendName.REFERENCE, "naive") == said


def generated(name: AttentionBackendName, log_name: str) -> list[int]:
    """The bundled model's answer, by the backend that calls itself `log_name`."""
    config = EngineConfig(
        ModelConfig(str(FOLDER), device="cpu", attention_backend=name),
        memory=MemoryConfig(kv_cache_tokens=64),
        scheduling=SchedulingConfig(max_model_len=32, max_num_seqs=4, max_num_batched_tokens=32),
    )
    engine, facts = build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
    assert facts.attention == log_name
    new = NewRequest("0", PROMPT, Sampling(temperature=0.0), Stopping(NUM_NEW))
    assert engine.submit(new) is None
    token_ids: list[int] = []
    while engine.has_work:
        for delta in engine.step().deltas:
            token_ids += delta.token_ids
    assert len(token_ids) == NUM_NEW
    return token_ids
