"""Chunks on the null block are shaped as those of a runner."""

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from quire.engine.runner import Runner, RunnerConfig
from quire.engine.startup.null_batch import NullBatches
from quire.models.batch import Batch
from quire.models.config import KVSize
from quire.models.toy import ToyModel
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import NewRequestData, SeqChunk, Step

CPU = torch.device("cpu")
MAX_LEN, VOCAB = 64, 101


class WatchedModel(ToyModel):
    """A toy model that keeps the batches that it is given."""

    def __init__(self, size: KVSize) -> None:
        super().__init__(VOCAB, size)
        self.batches: list[Batch] = []

    def forward(self, batch: Batch) -> Tensor:
        self.batches.append(batch)
        return super().forward(batch)


def batch_of_runner(start: int, num_tokens: int, block_size: int) -> Batch:
    """Return what a runner gives its model for one chunk of a prompt, with logits of each token."""
    num_blocks = -(-(start + num_tokens) // block_size)
    model = WatchedModel(KVSize(1 + MAX_LEN, block_size))
    runner = Runner(RunnerConfig(1, -(-MAX_LEN // block_size), block_size, "cpu"), model)
    prompt = (0,) * (start + num_tokens)
    new = NewRequest("a", prompt, Sampling(), Stopping(1), prompt_logprobs=0)
    joined = NewRequestData(new, prompt, (tuple(range(1, 1 + num_blocks)),))
    chunk = SeqChunk("a", start, num_tokens, (), samples=True)
    runner.run(Step(1, (), (joined,), (chunk,), num_tokens))
    (batch,) = model.batches
    return batch


def shape_of(batch: Batch) -> dict[str, object]:
    """Return the shapes and dtypes of a batch's tensors, and its numbers."""
    found: dict[str, object] = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        tensors = value if isinstance(value, tuple) else (value,)
        found[field.name] = [
            (each.shape, each.dtype) if isinstance(each, Tensor) else each for each in tensors
        ]
    return found


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize(("start", "num_tokens"), [(0, 1), (0, 17), (16, 16), (MAX_LEN - 1, 1)])
def test_a_chunk_is_shaped_as_a_runner_shapes_it(
    start: int, num_tokens: int, block_size: int
) -> None:
    made = NullBatches(block_size, 1, CPU).chunk(start, num_tokens)
    real = batch_of_runner(start, num_tokens, block_size)
    assert shape_of(made) == shape_of(real)
    assert torch.equal(made.positions, real.positions)
    assert torch.equal(made.logits_indices, real.logits_indices)
    assert not any(each.any() for each in (*made.slots, *made.block_tables))
