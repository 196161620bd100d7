"""The whole engine gives the vectors that transformers' states are pooled to, beside texts of the
same prompts, a budget that cuts prompts into chunks, and so few blocks that requests are preempted.
"""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModel, PreTrainedModel

from quire.engine.config import EngineConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.startup.build import build_engine
from quire.models.config import ModelDtype
from quire.scheduler.request import NewRequest, Pooling, PoolingKind, Sampling, Stopping
from tests.engine.states.test_recurrent_fidelity import build as build_recurrent
from tests.engine.test_fidelity import build
from tests.long import long_but_for
from tests.models.driver import DEVICE
from tests.models.families import SERVED
from tests.models.reference import PROVEN, References, fidelity_prompts, ordinary

CLOSE = 1e-5
"""Vectors have length 1; other orders of the same sums came to 3e-6 at most."""
KINDS = (PoolingKind.LAST, PoolingKind.MEAN)
IN_ANY_BATCH = ("llama", "gemma2", "gpt2")
IN_EVERY_RUN = (*IN_ANY_BATCH, "bert", "bitnet", "gemma3n_text", "deepseek_v3", "longcat_flash")
"""Models whose last norm and states differ; their texts are tested for all kinds."""

Vectors = dict[str, NDArray[np.float32]]


def vectors_of(engine: Engine, requests: list[NewRequest]) -> Vectors:
    """Return the vectors of the requests that have one."""
    for new in requests:
        assert engine.submit(new) is None
    vectors = {}
    while engine.has_work:
        for delta in engine.step().deltas:
            if delta.vector:
                vectors[delta.request_id] = np.frombuffer(delta.vector, np.float32)
    return vectors


def pooled(prompt: list[int], kind: PoolingKind, number: int) -> NewRequest:
    name = f"{kind} {number}"
    return NewRequest(name, tuple(prompt), Sampling(), Stopping(0), pooling=Pooling(kind))


def states_of(model: PreTrainedModel, prompt: list[int]) -> torch.Tensor:
    """What the head reads, [tokens, hidden_size]. A few families do not name their inner module as
    the others do: there it is the last of all hidden states."""
    ids = torch.tensor([prompt])
    states = getattr(model.base_model(ids, use_cache=False), "last_hidden_state", None)
    if isinstance(states, torch.Tensor):
        return states[0]
    last: torch.Tensor = model(ids, output_hidden_states=True).hidden_states[-1]
    return last[0]


def expected(states: torch.Tensor, kind: PoolingKind) -> NDArray[np.float64]:
    """The vector of one prompt's states [tokens, hidden_size]."""
    pooled = states[-1] if kind is PoolingKind.LAST else states.double().mean(0)
    vector: NDArray[np.float64] = torch.nn.functional.normalize(pooled.double(), dim=0).numpy()
    return vector


@long_but_for(IN_EVERY_RUN, "family", PROVEN)
@torch.inference_mode()
def test_vectors_are_those_of_the_states_that_transformers_has(
    family: str, references: References
) -> None:
    checkpoint = references.checkpoint(family)
    has_attention = family not in SERVED or SERVED[family].attention != "state"
    if has_attention:
        engine = build(checkpoint)
    else:  # without blocks nobody is preempted
        engine = build_recurrent(family, references, num_states=9, is_tight=True)
    prompts = fidelity_prompts()
    texts = [
        NewRequest(f"text {number}", tuple(prompt), Sampling(temperature=0.0), Stopping(16))
        for number, prompt in enumerate(prompts)
    ]
    pools = [pooled(p, kind, n) for n, p in enumerate(prompts) for kind in KINDS]
    found = vectors_of(engine, texts[:8] + pools + texts[8:])
    assert len(found) == len(pools)
    assert engine.stats.num_preemptions > 0 or not has_attention
    assert engine.stats.num_blocks_active == 0
    model = ordinary(checkpoint)
    for number, prompt in enumerate(prompts):
        states = states_of(model, prompt)
        for kind in KINDS:
            error = np.abs(found[f"{kind} {number}"] - expected(states, kind)).max()
            assert error < CLOSE, (kind, number)


@pytest.mark.parametrize("family", IN_ANY_BATCH)
def test_vectors_hardly_depend_on_the_batch(family: str, references: References) -> None:
    """Alone in one step, in company and in chunks, and over a cached prefix."""
    checkpoint = references.checkpoint(family)
    prompts = fidelity_prompts()
    pools = [pooled(p, kind, n) for n, p in enumerate(prompts) for kind in KINDS]
    whole = build(checkpoint, is_tight=False)
    alone = {name: vector for new in pools for name, vector in vectors_of(whole, [new]).items()}
    again = vectors_of(whole, pools)
    assert whole.stats.num_prefix_hits > 0
    together = vectors_of(build(checkpoint, is_overlapped=True), pools)
    for name, vector in alone.items():
        assert np.abs(vector - again[name]).max() < CLOSE
        assert np.abs(vector - together[name]).max() < CLOSE


@torch.inference_mode()
def test_a_decoder_without_a_head_gives_vectors_alone(tmp_path: Path) -> None:
    """As embedding models of decoders are stored; the states need no head."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
    config = AutoConfig.for_model(
        "qwen3", vocab_size=101, intermediate_size=64, num_hidden_layers=2, **sizes
    )
    inner = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    inner.save_pretrained(tmp_path)
    listed = [{"path": "", "type": f"sentence_transformers.models.{n}"} for n in ("Transformer",)]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    model = ModelConfig(str(tmp_path), device=DEVICE, dtype=ModelDtype.FLOAT32)
    scheduling = SchedulingConfig(max_model_len=96, max_num_seqs=8, max_num_batched_tokens=40)
    engine, facts = build_engine(
        EngineConfig(model, scheduling=scheduling),
        on_progress=lambda *_: None,
        clock=time.monotonic,
    )
    assert (facts.is_causal, facts.has_head, facts.generates) == (True, False, False)
    prompts = fidelity_prompts()
    found = vectors_of(engine, [pooled(p, PoolingKind.LAST, n) for n, p in enumerate(prompts)])
    for number, prompt in enumerate(prompts):
        states = inner(torch.tensor([prompt])).last_hidden_state[0]
        error = np.abs(found[f"last {number}"] - expected(states, PoolingKind.LAST)).max()
        assert error < CLOSE
