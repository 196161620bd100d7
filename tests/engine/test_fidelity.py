"""The whole engine says what `transformers.generate` says, token for token in fp32: 16 requests of
mixed lengths at once, a budget that cuts prompts into chunks, and so few blocks that requests
are preempted. Families come in the order that tests/models/test_fidelity.py has not: another
process that tests it meanwhile then makes one half of the references, and this one the other.
"""

import time
from pathlib import Path

import pytest

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.startup.build import build_engine
from quire.models.config import QUANTISED, AttentionBackendName, KVCacheDtype, ModelDtype
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.long import long_but_for
from tests.models.driver import DEVICE
from tests.models.families import SERVED
from tests.models.reference import (
    BLOCK_SIZE,
    MAX_LEN,
    NUM_NEW,
    NUM_SEQS,
    PROVEN,
    References,
    fidelity_prompts,
)

EACH_WAY = ("llama", "gemma2", "gpt_oss", "llama4_text", "deepseek_v3")
"""One for each way of attention."""
IN_EVERY_RUN = (
    *EACH_WAY,
    *("stories260K", "mixtral", "longcat_flash", "mimo_v2_flash", "mistral, window"),
    *("gemma3n_text", "gemma4_text, layers that share K and V", "granite_swa"),
)
"""One for each form of the KV cache, and a trained one. Logits are compared for each mechanism in
tests/models/test_fidelity.py."""
STATELESS = [name for name in PROVEN if name not in SERVED or "state" not in SERVED[name].attention]
"""All but those with recurrent layers, which tests/engine/states has."""
NUM_INTERPRETED = 4
SWAP_GIB = 0.05


def build(
    checkpoint: Path,
    *,
    is_tight: bool = True,
    attention: AttentionBackendName = AttentionBackendName.AUTO,
    kv_dtype: KVCacheDtype = KVCacheDtype.AUTO,
    is_overlapped: bool | None = None,
) -> Engine:
    """Tight: budget and blocks are so few that requests are cut into chunks and preempted. Sizes
    are given, since a GPU would else be filled for each engine."""
    config = EngineConfig(
        ModelConfig(
            str(checkpoint), device=DEVICE, dtype=ModelDtype.FLOAT32, attention_backend=attention
        ),
        memory=MemoryConfig(
            block_size=BLOCK_SIZE,
            kv_cache_tokens=3 * MAX_LEN if is_tight else 2 * NUM_SEQS * MAX_LEN,
            kv_cache_dtype=kv_dtype,
            swap_space=SWAP_GIB,
        ),
        scheduling=SchedulingConfig(
            max_model_len=MAX_LEN,
            max_num_seqs=NUM_SEQS,
            max_num_batched_tokens=40 if is_tight else NUM_SEQS * MAX_LEN,
            async_scheduling=is_overlapped,
        ),
    )
    engine, _ = build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
    return engine


def texts_of(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        new = NewRequest(str(index), tuple(prompt), Sampling(temperature=0.0), Stopping(NUM_NEW))
        assert engine.submit(new) is None
    while engine.has_work:
        for delta in engine.step().deltas:
            texts[int(delta.request_id)] += delta.token_ids
    return texts


@long_but_for(IN_EVERY_RUN, "family", reversed(STATELESS))
def test_greedy_tokens_are_those_of_generate(family: str, references: References) -> None:
    engine = build(references.checkpoint(family))
    assert texts_of(engine, fidelity_prompts()) == references.greedy_texts(family)
    assert engine.stats.num_preemptions > 0
    assert engine.stats.num_blocks_active == 0


@pytest.mark.parametrize("family", EACH_WAY)
def test_every_softmax_written_out_says_the_same(family: str, references: References) -> None:
    engine = build(references.checkpoint(family), attention=AttentionBackendName.EAGER)
    assert texts_of(engine, fidelity_prompts()) == references.greedy_texts(family)


@pytest.mark.parametrize("family", EACH_WAY)
def test_steps_that_are_launched_ahead_say_the_same(family: str, references: References) -> None:
    engine = build(references.checkpoint(family), is_overlapped=True)
    assert texts_of(engine, fidelity_prompts()) == references.greedy_texts(family)
    assert engine.stats.num_preemptions > 0
    assert engine.stats.num_blocks_active == 0


@pytest.mark.long  # whole starts that capture have these kernels in every run
@pytest.mark.parametrize("family", ["gpt_oss", "llama4_text"])
def test_triton_kernels_say_the_same(family: str, references: References) -> None:
    """Few requests: interpreted, a step of the kernels takes a tenth of a second."""
    pytest.importorskip("triton", reason="triton is not installed")
    engine = build(references.checkpoint(family), attention=AttentionBackendName.TRITON)
    prompts = fidelity_prompts()[:NUM_INTERPRETED]
    assert texts_of(engine, prompts) == references.greedy_texts(family)[:NUM_INTERPRETED]
    assert engine.stats.num_blocks_active == 0


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("family", EACH_WAY)
def test_text_over_quantised_kv_does_not_depend_on_chunks_and_preemptions(
    family: str, dtype: KVCacheDtype, references: References
) -> None:
    checkpoint = references.checkpoint(family)
    tight = build(checkpoint, kv_dtype=dtype)
    roomy = build(checkpoint, is_tight=False, kv_dtype=dtype)
    assert texts_of(tight, fidelity_prompts()) == texts_of(roomy, fidelity_prompts())
    assert tight.stats.num_preemptions > roomy.stats.num_preemptions == 0
