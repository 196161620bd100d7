"""Models with recurrent layers run over packed weights and fused parts, in both dtypes of these."""

import pytest
import torch

from quire.models.config import ModelDtype
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.loader import load_model
from tests.long import long_but_for
from tests.models.driver import ignore_progress
from tests.models.families import SERVED
from tests.models.reference import References

STATEFUL = [name for name, family in SERVED.items() if "state" in family.attention]
OTHER_ATTENTION = ("zamba2", "zamba2, rotary positions")
"""Their attention has adapters beside its projections."""
IN_EVERY_RUN = ("qwen3_5_text", "olmo_hybrid", "lfm2", "mamba", "mamba2", "kimi_linear", "zamba2")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@long_but_for(IN_EVERY_RUN, "name", STATEFUL)
def test_no_faster_way_is_left_out(
    name: str, dtype: str, kernels: ModelKernels, references: References
) -> None:
    loaded = load_model(
        ModelSource(str(references.checkpoint(name))),
        dtype=ModelDtype(dtype),
        device=torch.device("cpu"),
        on_progress=ignore_progress,
        kernels=kernels,
    )
    if name in OTHER_ATTENTION and loaded.left_out:
        (why,) = loaded.left_out
        assert "AttentionForward: the module computes something else" in why
    else:
        assert not loaded.left_out
