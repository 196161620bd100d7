"""Encoders give the vectors that transformers' states are pooled to: texts of mixed lengths packed
into steps, alone and in company, whole, with nothing kept between steps.
"""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from quire.engine.config import (
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    PoolingName,
    SchedulingConfig,
)
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts
from quire.engine.startup.build import build_engine
from quire.models.config import ModelDtype, Quantization, UnsupportedModel
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Pooling, PoolingKind, Sampling, Stopping
from tests.engine.test_embedding_fidelity import CLOSE, Vectors, vectors_of
from tests.instructions import built_library
from tests.models.driver import DEVICE
from tests.models.reference import some_prompts

VOCAB, MAX_LEN = 101, 60
AS_LONG = SchedulingConfig(max_model_len=MAX_LEN)
SIZES: dict[str, object] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 2,
}
ENCODERS: dict[str, dict[str, object]] = {
    **dict.fromkeys(("bert", "camembert", "roberta", "xlm-roberta"), SIZES),
    "distilbert": {
        **SIZES,
        **{"dim": 48, "hidden_dim": 64, "n_layers": 3, "n_heads": 4},
    },
    "modernbert": {
        **SIZES,
        **{"local_attention": 8, "initializer_cutoff_factor": 3.0},
        **{"bos_token_id": 0, "eos_token_id": 1, "cls_token_id": 0, "sep_token_id": 1},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoders")


def checkpoint(folder: Path, name: str) -> Path:
    """A tiny encoder of random weights."""
    path = folder / name
    if not path.exists():
        torch.manual_seed(5)
        config = AutoConfig.for_model(name, **ENCODERS[name])
        model = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        model.save_pretrained(path)
    return path


def build(path: Path, scheduling: SchedulingConfig = AS_LONG) -> tuple[Engine, EngineFacts]:
    model = ModelConfig(str(path), device=DEVICE, dtype=ModelDtype.FLOAT32)
    config = EngineConfig(model, scheduling=scheduling)
    return build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)


def requests(prompts: list[list[int]]) -> list[NewRequest]:
    return [
        NewRequest(f"{kind} {n}", tuple(p), Sampling(), Stopping(0), pooling=Pooling(kind))
        for n, p in enumerate(prompts)
        for kind in PoolingKind
    ]


@torch.inference_mode()
def expected(path: Path, prompts: list[list[int]]) -> Vectors:
    """What transformers says, text by text, with its own attention."""
    model = AutoModel.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    vectors = {}
    for number, prompt in enumerate(prompts):
        states = model(torch.tensor([prompt])).last_hidden_state[0].double()
        pooled = {
            PoolingKind.LAST: states[-1],
            PoolingKind.MEAN: states.mean(0),
            PoolingKind.CLS: states[0],
        }
        for kind, state in pooled.items():
            vectors[f"{kind} {number}"] = torch.nn.functional.normalize(state, dim=0).numpy()
    return vectors


@pytest.mark.parametrize("is_overlapped", [False, True], ids=["in time", "overlapped"])
@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_those_of_the_states_that_transformers_has(
    name: str, is_overlapped: bool, folder: Path
) -> None:
    path, prompts = checkpoint(folder, name), some_prompts(16, MAX_LEN)
    engine, facts = build(path, SchedulingConfig(MAX_LEN, 8, 70, async_scheduling=is_overlapped))
    found, wanted = vectors_of(engine, requests(prompts)), expected(path, prompts)
    assert found.keys() == wanted.keys()
    assert max(np.abs(found[key] - wanted[key]).max() for key in wanted) < CLOSE
    assert (facts.is_causal, facts.num_blocks, facts.max_model_len) == (False, 1, MAX_LEN)
    alone = {
        key: each for new in requests(prompts) for key, each in vectors_of(engine, [new]).items()
    }
    assert max(np.abs(found[key] - alone[key]).max() for key in alone) < CLOSE


def test_no_text_is_cut(folder: Path) -> None:
    """Each step has whole texts of at most its budget."""
    engine, _ = build(checkpoint(folder, "bert"), SchedulingConfig(MAX_LEN, 8, 64))
    lengths = [40, 30, 10, 24, 60, 1]
    for new in requests([[3] * length for length in lengths])[::3]:
        assert engine.submit(new) is None
    steps = []
    while engine.has_work:
        output = engine.step()
        steps.append(output.num_tokens)
        assert all(delta.finish is not None for delta in output.deltas)
    assert sum(steps) == sum(lengths)
    assert steps == [40, 64, 61]


def test_the_longest_text_is_what_the_files_say(folder: Path) -> None:
    path = checkpoint(folder, "roberta")
    _, facts = build(path, SchedulingConfig())
    assert facts.max_model_len == 64 - 3, "positions begin behind that of the padding token"
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    try:
        _, facts = build(path, SchedulingConfig())
        assert facts.embeddings is not None
        assert facts.max_model_len == facts.embeddings.max_len == 20
    finally:
        (path / "sentence_bert_config.json").unlink()


def test_a_text_that_is_too_long_is_refused_with_the_numbers(folder: Path) -> None:
    engine, _ = build(checkpoint(folder, "bert"))
    refusal = engine.submit(requests([[3] * (MAX_LEN + 1)])[0])
    assert refusal is not None and refusal.reason is Reason.CONTEXT_EXCEEDED
    assert "61" in refusal.message and "60" in refusal.message


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (MemoryConfig(kv_cache_tokens=99), "keeps no keys"),
        (MemoryConfig(swap_space=1.0), "swap-space"),
        (ModelConfig("", quantization=Quantization.INT8), "quantization"),
        (SchedulingConfig(max_model_len=65), "max-model-len is 65"),
        (SchedulingConfig(max_num_batched_tokens=63, max_num_seqs=4), "max-num-batched-tokens"),
    ],
)
def test_options_that_an_encoder_does_not_have_are_refused(
    part: MemoryConfig | ModelConfig | SchedulingConfig, said: str, folder: Path
) -> None:
    model = ModelConfig(str(checkpoint(folder, "bert")))
    match part:
        case MemoryConfig():
            config = EngineConfig(model, memory=part)
        case SchedulingConfig():
            config = EngineConfig(model, scheduling=part)
        case ModelConfig():
            config = EngineConfig(replace(model, quantization=part.quantization))
    with pytest.raises(ValueError, match=said):
        build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)


def test_an_encoder_has_no_blocks_to_keep_on_disk(folder: Path, tmp_path: Path) -> None:
    memory = MemoryConfig(prefix_cache_dir=str(tmp_path), prefix_cache_bytes=1 << 20)
    config = EngineConfig(ModelConfig(str(checkpoint(folder, "bert"))), memory=memory)
    with pytest.raises(ValueError, match="--prefix-cache-dir does not go with it"):
        build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)


def test_an_encoder_has_no_packed_weights_to_keep(folder: Path, tmp_path: Path) -> None:
    built_library()
    name = str(checkpoint(folder, "bert"))
    config = EngineConfig(ModelConfig(name, device="cpu", weights_cache_dir=str(tmp_path)))
    with pytest.raises(ValueError, match="--weights-cache-dir does not go with it"):
        build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)


def test_an_encoder_that_is_not_proven_is_refused_by_name(tmp_path: Path) -> None:
    fields = {"model_type": "funnel", "architectures": ["FunnelModel"]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UnsupportedModel, match="funnel models .* encoders"):
        build(tmp_path)


@pytest.mark.parametrize("pooling", PoolingName)
def test_the_default_of_an_encoder_is_the_mean(folder: Path, pooling: PoolingName) -> None:
    model = ModelConfig(str(checkpoint(folder, "bert")), pooling=pooling)
    _, facts = build_engine(EngineConfig(model), on_progress=lambda *_: None, clock=time.monotonic)
    assert facts.embeddings is not None
    wanted = "mean" if pooling is PoolingName.AUTO else str(pooling)
    assert (str(facts.embeddings.pooling), facts.embeddings.why_not) == (wanted, "")
