"""The perplexity of people's texts on real weights is that of transformers."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
import torch
from bench.perplexity import encode, perplexity
from torch import Tensor
from transformers import AutoModelForCausalLM

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.models.config import ModelDtype
from quire.models.loading.dtype_choice import cpu_has_fast_bfloat16
from tests.real.models import real_folder
from tests.real.texts import passages

SHARE = 0.001
"""The largest difference, as a share of transformers' perplexity."""
NUM_DEVIATIONS = 4
"""In bfloat16 as many standard deviations more, of the mean of what rounding moves each token by:
of a thousand tokens one is about SHARE."""
KV_BYTES = 1 << 28
MAX_MODEL_LEN = 2048
"""Longer than any of the texts."""
Texts = Sequence[Sequence[int]]


def scores_by_transformers(folder: Path, texts: Texts, dtype: torch.dtype) -> Tensor:
    """The log probabilities of all tokens but the first of each text."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    found = []
    for text in texts:
        ids = torch.tensor([text])
        with torch.inference_mode():
            scores = model(ids).logits[0, :-1].float().log_softmax(-1)
        found.append(scores.gather(-1, ids[0, 1:, None])[:, 0].double())
    return torch.cat(found)


def ours(folder: Path, texts: Texts, dtype: ModelDtype) -> float:
    config = EngineConfig(
        ModelConfig(str(folder), device="cpu", dtype=dtype),
        memory=MemoryConfig(kv_cache_memory_bytes=KV_BYTES),
        scheduling=SchedulingConfig(max_model_len=MAX_MODEL_LEN),
    )
    found, _ = perplexity(config, texts)
    return found


def check(name: str, texts: Sequence[str], dtypes: Collection[ModelDtype]) -> None:
    folder = real_folder(name)
    encoded = [encode(folder, text) for text in texts]
    exact = scores_by_transformers(folder, encoded, torch.float32)
    expected, noise = math.exp(-exact.mean()), 0.0
    if cpu_has_fast_bfloat16():  # else AUTO is float32
        rounded = scores_by_transformers(folder, encoded, torch.bfloat16)
        noise = float((rounded - exact).std()) / math.sqrt(len(exact))
    shares = {
        ModelDtype.FLOAT32: SHARE,
        ModelDtype.AUTO: SHARE + NUM_DEVIATIONS * noise,
    }
    for dtype in dtypes:
        found, share = ours(folder, encoded, dtype), shares[dtype]
        assert abs(found / expected - 1) < share, f"{dtype}: {found}, transformers {expected}"


@pytest.mark.timeout(900)
def test_perplexity_is_that_of_transformers() -> None:
    check("smollm2", passages(maths=2, code=1, plays=1), [ModelDtype.AUTO])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_perplexity_of_all_texts_is_that_of_transformers(name: str) -> None:
    texts = passages(maths=60, code=40, plays=20)
    check(name, texts, [ModelDtype.FLOAT32, ModelDtype.AUTO])
