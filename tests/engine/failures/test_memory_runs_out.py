"""A step that finds no memory is computed in parts, and its requests say the same."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.engine.runner import Runner, RunnerConfig
from quire.models.batch import Batch, StepRows
from quire.models.config import KVSize
from quire.models.toy import ToyModel
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import NewRequestData, SeqChunk, Step, StepFailure, StepResult

VOCAB_SIZE, BLOCK_SIZE = 24, 4


class Narrow:
    """The toy, with memory for steps of at most `num_tokens`. The logits of all steps lie in the
    same place, as those of captured steps do."""

    def __init__(self, num_tokens: int) -> None:
        self._toy = ToyModel(VOCAB_SIZE, KVSize(64, BLOCK_SIZE))
        self._num_tokens = num_tokens
        self._logits = torch.empty(0, VOCAB_SIZE)

    @property
    def vocab_size(self) -> int:
        return self._toy.vocab_size

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        self._toy.copy_blocks(copies, new_blocks)

    def take_copy_time(self) -> CopyTime:
        return self._toy.take_copy_time()

    def forward(self, batch: Batch) -> Tensor:
        self._check(batch)
        logits = self._toy.forward(batch)
        if len(logits) > len(self._logits):
            self._logits = torch.empty_like(logits)
        return self._logits[: len(logits)].copy_(logits)

    def forward_with_states(self, batch: Batch) -> StepRows:
        self._check(batch)
        return self._toy.forward_with_states(batch)

    def _check(self, batch: Batch) -> None:
        if len(batch.positions) > self._num_tokens:
            raise torch.OutOfMemoryError("no memory for so many tokens")


def step_of(lengths: Sequence[int], scored: Sequence[bool]) -> Step:
    """All prompts at once, each of a request that samples its first token."""
    new_requests, chunks, next_block = [], [], 1
    for index, length in enumerate(lengths):
        prompt = tuple((7 * index + 3 * position) % VOCAB_SIZE for position in range(length))
        new = NewRequest(
            str(index),
            prompt,
            Sampling(temperature=0.0),
            Stopping(4),
            prompt_logprobs=2 if scored[index] else None,
        )
        num_blocks = length // BLOCK_SIZE + 1
        blocks = tuple(range(next_block, next_block + num_blocks))
        next_block += num_blocks
        new_requests.append(NewRequestData(new, prompt, (blocks,)))
        chunks.append(SeqChunk(new.id, 0, length, (), samples=True))
    return Step(1, (), tuple(new_requests), tuple(chunks), sum(lengths))


def results(num_tokens: int, lengths: Sequence[int], scored: Sequence[bool]) -> list[StepResult]:
    """Of the prompts, and of a step after them that reads all they have stored."""
    runner = Runner(RunnerConfig(8, 16, BLOCK_SIZE, "cpu"), Narrow(num_tokens))
    first = step_of(lengths, scored)
    chunks = tuple(SeqChunk(str(i), length, 1, (), True) for i, length in enumerate(lengths))
    return [runner.run(first), runner.run(Step(2, (), (), chunks, len(chunks)))]


@given(
    st.lists(st.tuples(st.integers(1, 11), st.booleans()), min_size=1, max_size=6),
    st.integers(1, 40),
)
def test_parts_come_to_the_whole(prompts: list[tuple[int, bool]], num_tokens: int) -> None:
    lengths, scored = [length for length, _ in prompts], [asked for _, asked in prompts]
    in_parts = results(num_tokens, lengths, scored)
    assert [replace(each, step_failure=None) for each in in_parts] == results(1000, lengths, scored)
    is_short = num_tokens < sum(lengths)
    assert in_parts[0].step_failure is (StepFailure.OUT_OF_MEMORY if is_short else None)


def test_a_single_request_that_finds_no_memory_fails() -> None:
    for result in results(0, [3], [True]):
        assert result.step_failed == {"0"}
        assert result.prompt_logprobs == {}


def test_many_of_which_none_finds_memory_are_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        results(0, [3, 4], [False, False])
