"""The words that say how decode steps are launched, where none are captured."""

import pytest
import torch

from quire.cache.sizing import KVCapacity
from quire.engine.config import ModelConfig
from quire.engine.startup.graphs import with_graphs
from quire.engine.startup.kv_plan import KVPlan, Limits, Reasons
from quire.models.config import KVOptions
from tests.models.driver import ignore_progress, load
from tests.models.reference import References

LIMITS = Limits(
    max_model_len=64, model_max_len=64, max_num_seqs=4, num_tokens=None, default_token_budget=32
)


@pytest.mark.parametrize(
    ("device", "enforce_eager", "expected"),
    [
        ("cpu", False, "eager"),
        ("cpu", True, "eager"),
        ("cuda", True, "eager (not cuda_graphs: --enforce-eager)"),
        ("cuda", False, "eager (not cuda_graphs: its attention asks the host)"),
    ],
)
def test_steps_that_are_not_captured_say_why(
    device: str, enforce_eager: bool, expected: str, references: References
) -> None:
    loaded = load(references.checkpoint("llama"))
    capacity = KVCapacity(loaded.facts.layout(KVOptions()), 8, 16, 32)
    plan = KVPlan(capacity, LIMITS, 32, 0, Reasons("", ""))
    config = ModelConfig("llama", enforce_eager=enforce_eager)
    model = loaded.attach(capacity.num_blocks, capacity.block_size)
    found = with_graphs(config, model, torch.device(device), plan, ignore_progress)
    assert found.model is model and found.decode == expected
