"""With the C++ kernels bfloat16 text too is the same alone and in any batch: no row of a product,
and no chunk's attention, depends on what runs beside it.
"""

import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.startup.build import build_engine
from quire.models.config import LinearBackend, ModelDtype, Quantization
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.instructions import library_with_products
from tests.long import long_but_for
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED
from tests.models.reference import NUM_NEW, References, some_prompts
from tests.models.test_bundled import FOLDER

PROMPTS = some_prompts(12, 60)
FAMILIES = ("bundled", "llama", "gemma2", "deepseek_v3")
IN_EVERY_RUN = [
    *product(FAMILIES[:1], Quantization),
    *((family, Quantization.NONE) for family in FAMILIES[1:]),
]
"""Each form of weights on a trained model, and each way of attention."""


def model_of(checkpoint: Path) -> ModelConfig:
    return ModelConfig(str(checkpoint), device="cpu", dtype=ModelDtype.BFLOAT16)


def config_of(model: ModelConfig) -> EngineConfig:
    return EngineConfig(
        model,
        memory=MemoryConfig(enable_prefix_caching=False),
        scheduling=SchedulingConfig(max_model_len=96, max_num_batched_tokens=1024),
    )


def texts_of(config: EngineConfig, batches: list[list[int]]) -> dict[str, list[int]]:
    """The outputs of PROMPTS by index, those of one batch run at once."""
    engine, _ = build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
    texts: dict[str, list[int]] = {}
    for batch in batches:
        for index in batch:
            prompt = tuple(PROMPTS[index])
            new = NewRequest(str(index), prompt, Sampling(temperature=0.0), Stopping(NUM_NEW))
            assert engine.submit(new) is None
        while engine.has_work:
            for delta in engine.step().deltas:
                texts.setdefault(delta.request_id, []).extend(delta.token_ids)
    return texts


@long_but_for(IN_EVERY_RUN, "family, quantization", product(FAMILIES, Quantization))
def test_bfloat16_text_is_the_same_alone_and_in_any_batch(
    family: str, quantization: Quantization, references: References
) -> None:
    library_with_products()
    checkpoint = FOLDER if family == "bundled" else references.checkpoint(family)
    everyone = list(range(len(PROMPTS)))
    config = config_of(replace(model_of(checkpoint), quantization=quantization))
    alone = texts_of(config, [[index] for index in everyone])
    assert texts_of(config, [everyone]) == alone


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "gemma2", "deepseek_v3"])
def test_float32_text_over_bfloat16_numbers_is_that_of_torchs_layers(
    family: str, tmp_path: Path
) -> None:
    folder = save_checkpoint(SERVED[family], tmp_path, torch.bfloat16)
    model, everyone = replace(model_of(folder), dtype=ModelDtype.FLOAT32), range(len(PROMPTS))
    torchs = replace(model, linear_backend=LinearBackend.TORCH)
    together = texts_of(config_of(model), [list(everyone)])
    assert together == texts_of(config_of(torchs), [list(everyone)])
    assert texts_of(config_of(model), [[index] for index in everyone]) == together
